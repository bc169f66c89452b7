//! Ranges of any size, read at one revision while they arrive.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::endpoint::with_port;
use super::response::unexpected_response;
use super::route::Errand;
use super::{Client, GetOptions};
use crate::api::{
    Consistency, Error, ErrorKind, KeyRange, KeyValue, Outcome, RangeRequest, Request, ResponseBody,
};

/// The keys of a range, in key order, as they were at one revision.
///
/// One reply of the server is held at a time, and the next is requested when it is used up: the
/// reader sets the pace, and a slow reader delays no other request, neither on the server nor on
/// this client. The stream survives lost connections and changes of leader: it continues at another
/// node, unless its options name one, from the key after the last one returned.
#[derive(Debug)]
pub struct RangeStream {
    client: Client,
    consistency: Consistency,
    min_revision: i64,
    endpoint: Option<String>,
    timeout: Duration,
    request: RangeRequest,
    has_limit: bool,
    /// The end of the range.
    end: Option<Bytes>,
    arrived: VecDeque<KeyValue>,
    revision: Option<i64>,
    is_over: bool,
}

impl Client {
    /// Reads a range of any size: keys are returned one by one, in key order, all at one revision.
    /// That is the current revision when the first page is requested, unless the options name
    /// another.
    ///
    /// The timeout is that of one reply, not of the whole stream. A stream whose revision is
    /// compacted before it ends fails with [`ErrorKind::Compacted`].
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::GetOptions;
    ///
    /// let mut keys = client.get_stream("", Some(GetOptions::new().with_all_keys()))?;
    /// while let Some(kv) = keys.next().await {
    ///     println!("{:?}", kv?.key);
    /// }
    /// println!("all of it as of revision {:?}", keys.revision());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for options that a stream does not support: another order
    /// than that of the keys, or a count. The first [`RangeStream::next`] reports whether the range
    /// can be read.
    pub fn get_stream(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<GetOptions>,
    ) -> Result<RangeStream, Error> {
        let options = options.unwrap_or_default();
        if options.is_counted {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                "a stream does not know how many keys there are before its end: leave with_count out",
            ));
        }
        let defaults = &self.inner.options;
        let mut request = RangeRequest {
            key: Bytes::copy_from_slice(options.selector.start(key.as_ref())?),
            range: options.selector.range,
            ..options.request
        };
        self.prepared(Request::RangePage(request.clone()))?;
        let (_, end) = request.range.bounds(&request.key);
        if request.range == KeyRange::Prefix {
            // Later pages start at another key, from which the end of the prefix cannot be derived.
            request.range = range_until(end.as_ref());
        }
        Ok(RangeStream {
            client: self.clone(),
            consistency: options.consistency.unwrap_or(defaults.consistency),
            min_revision: options.min_revision,
            endpoint: options.endpoint.as_deref().map(with_port).transpose()?,
            timeout: options.timeout.unwrap_or(defaults.timeout),
            has_limit: request.limit > 0,
            request,
            end,
            arrived: VecDeque::new(),
            revision: None,
            is_over: false,
        })
    }
}

impl RangeStream {
    /// The next key; `None` after the last, and after an error.
    ///
    /// # Errors
    /// As [`Client::get`]. The stream ends then.
    ///
    /// # Cancel safety
    /// Safe: no key is lost or returned twice.
    pub async fn next(&mut self) -> Option<Result<KeyValue, Error>> {
        loop {
            if let Some(kv) = self.arrived.pop_front() {
                return Some(Ok(kv));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.fetch().await {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }

    /// The revision at which the range is read; `None` before the first reply has arrived.
    pub fn revision(&self) -> Option<i64> {
        self.revision
    }

    /// Requests the next page. The stream's state changes only when the page has arrived.
    async fn fetch(&mut self) -> Result<(), Error> {
        let errand = Errand {
            request: self
                .client
                .prepared(Request::RangePage(self.request.clone()))?,
            consistency: self.consistency,
            min_revision: self.min_revision,
            ticket: None,
            timeout: self.timeout,
            only: self.endpoint.as_deref(),
            context: self.client.context,
        };
        let answer = self.client.inner.router.run(errand).await;
        let response = answer.map_err(|failed| failed.error)?;
        let (_, body) = self.client.received(response, Outcome::NotApplied)?;
        let ResponseBody::RangePage(page) = body else {
            return Err(unexpected_response(&body, Outcome::NotApplied));
        };
        self.revision = Some(page.revision);
        self.request.revision = page.revision;
        self.min_revision = self.min_revision.max(page.revision);
        if self.has_limit {
            let found = page.kvs.len() as u64;
            self.request.limit = self.request.limit.saturating_sub(found);
        }
        match page.next {
            Some(next) if !self.has_limit || self.request.limit > 0 => {
                self.request.key = next;
                self.request.range = range_until(self.end.as_ref());
            }
            _ => self.is_over = true,
        }
        self.arrived = page.kvs.into();
        Ok(())
    }
}

fn range_until(end: Option<&Bytes>) -> KeyRange {
    match end {
        Some(end) => KeyRange::Until(end.clone()),
        None => KeyRange::From,
    }
}
