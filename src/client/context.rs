//! What the requests of a client say of themselves.

use super::Client;
use crate::api::{Priority, TraceParent};
use crate::wire::RequestContext;

impl Client {
    /// This client, whose requests are a part of the trace that `parent` names, made by the span that it
    /// names: what W3C's `traceparent` says. The nodes that serve them show the time of each as spans below
    /// that one, if they have a collector; a node whose request was slow names the trace in its log. Made
    /// for the requests of one span, and dropped after that: it shares everything with this client.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// // As it came with the request that this program serves:
    /// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let traced = client.with_traceparent(parent.parse()?);
    /// traced.put("color", "blue", None).await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// A node keeps what it knows of a sampled trace, as far as there is room, and of others what it would
    /// have kept anyway: a share of all requests, and slow ones. What goes on after a request is no part of
    /// its trace: watches, and the renewals of a lease keeper.
    #[must_use]
    pub fn with_traceparent(&self, parent: TraceParent) -> Self {
        Self {
            context: RequestContext {
                trace_parent: Some(parent),
                ..self.context
            },
            ..self.clone()
        }
    }

    /// This client, whose requests matter so much to it: those of [`Priority::Low`] are the first that a
    /// node refuses when it has more than it can serve, and are then made again, within their deadlines, as
    /// any are that a node refuses for that. It shares everything with this client. Renewals of leases are
    /// never refused for it, watches and reads under the leader lease neither.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::api::Priority;
    /// use leasehold::client::GetOptions;
    ///
    /// let patient = client.with_priority(Priority::Low);
    /// let all = patient.get("", Some(GetOptions::new().with_all_keys())).await?;
    /// println!("{} keys", all.kvs.len());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self {
            context: RequestContext {
                priority,
                ..self.context
            },
            ..self.clone()
        }
    }

    /// How much the requests of this client matter: [`Priority::Normal`] without [`Client::with_priority`].
    pub fn priority(&self) -> Priority {
        self.context.priority
    }

    /// The place in a trace that the requests of this client name; `None` for a client without
    /// [`Client::with_traceparent`].
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.context.trace_parent
    }
}
