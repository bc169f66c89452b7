//! gRPC's own service of health, `grpc.health.v1.Health`.

use prost::Message;

/// Asks whether a service serves; the empty name is the whole server.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

/// To [`HealthCheckRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}

/// The status of a server that serves, of one that does not, and of a service that is not there.
pub(crate) const SERVING: i32 = 1;
pub(crate) const NOT_SERVING: i32 = 2;
pub(crate) const SERVICE_UNKNOWN: i32 = 3;
