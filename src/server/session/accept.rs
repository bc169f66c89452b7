//! Accepts the connections of clients, and the streams of each.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::connection::{ConnectionState, ForwardTarget};
use super::shared::Sessions;
use super::stream;
use crate::server::session::auth::Principal;
use crate::server::session::budget::{ByteBudget, InFlight, SCANS_PER_CONNECTION_MAX};
use crate::server::watch;
use crate::server::watch::{WatchSender, Watches};
use crate::transport::{ClientConnection, ClientListener, CloseCode};

/// How often it is looked whether the token of a connection is over, and after how many looks it is closed.
const TOKEN_LOOK: Duration = Duration::from_secs(1);
const OUTLIVED_LOOKS: u32 = 3;

/// Ends the watches of a connection when its task ends, however it ends.
struct WatchGuard {
    watch_sender: Arc<WatchSender>,
    watches: Arc<Watches>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.watches.left(self.watch_sender.clone());
    }
}

/// Until a client has not shown another token in place of one of an issuer that is over. Its requests are
/// refused meanwhile, and by its watches it would go on to see.
async fn outlived(principal: &Principal) {
    let mut looks = 0;
    while looks < OUTLIVED_LOOKS {
        tokio::time::sleep(TOKEN_LOOK).await;
        looks = match principal.is_outlived() {
            true => looks + 1,
            false => 0,
        };
    }
}

impl Sessions {
    /// Accepts connections until the listener is closed. The connections end with it.
    pub(crate) async fn accept(self: Arc<Self>, listener: Arc<ClientListener>) {
        let mut connections = JoinSet::new();
        while let Some(connection) = listener.accept().await {
            connections.spawn(self.clone().serve_connection(connection));
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    }

    async fn serve_connection(self: Arc<Self>, mut connection: ClientConnection) {
        tracing::debug!(
            client = %connection.identity().name(),
            address = %connection.remote_address(),
            "client connected"
        );
        let connection_state = Arc::new(ConnectionState {
            in_flight: Arc::new(InFlight::new(self.limits.in_flight_max)),
            budget: ByteBudget::new(self.limits.connection_bytes_max),
            scans: Arc::new(Semaphore::new(SCANS_PER_CONNECTION_MAX)),
            watch_sender: WatchSender::of(connection.connection()),
            principal: Principal::new(
                connection.identity().name(),
                connection.remote_address().ip(),
            ),
            address: connection.remote_address(),
            forwarding: ForwardTarget::none(),
            has_free_pages: false,
        });
        let watch_sender = connection_state.watch_sender.clone();
        // Ends with this task, as the streams do.
        let mut sending = JoinSet::new();
        sending.spawn(watch::send(
            watch_sender.clone(),
            connection.connection().clone(),
            self.serving.watches.clone(),
            self.accounting.metrics.clone(),
        ));
        let _watches = WatchGuard {
            watch_sender,
            watches: self.serving.watches.clone(),
        };
        let mut streams = JoinSet::new();
        let has_issuer = self.serving.access.has_issuer();
        // One for all turns: begun again with each stream, it would never end for a client that opens many.
        let mut token_over = pin!(outlived(&connection_state.principal));
        loop {
            let accepted = tokio::select! {
                accepted = connection.accept_stream() => accepted,
                () = &mut token_over, if has_issuer => {
                    connection.connection().close(CloseCode::Untrusted);
                    break;
                }
            };
            let Ok(stream) = accepted else {
                break;
            };
            streams.spawn(stream::serve(
                self.clone(),
                connection_state.clone(),
                stream,
            ));
            while streams.try_join_next().is_some() {}
        }
    }
}
