//! Which methods are there beside those of the gateway, and the refusal of those that are not.

use crate::etcd::status::{Code, Status};

/// Of gRPC alone: the gateway has no path for it.
pub(super) const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";

/// The services that have methods here.
const SERVICES: [&str; 9] = [
    "etcdserverpb.KV",
    "etcdserverpb.Watch",
    "etcdserverpb.Lease",
    "etcdserverpb.Cluster",
    "etcdserverpb.Maintenance",
    "etcdserverpb.Auth",
    "v3lockpb.Lock",
    "v3electionpb.Election",
    "grpc.health.v1.Health",
];

/// The service of the method at `path`, if there is one.
pub(super) fn service_of(path: &str) -> Option<&'static str> {
    let (service, _) = split(path);
    SERVICES.into_iter().find(|known| *known == service)
}

/// The refusal of a method that is not there, in the words of gRPC.
pub(super) fn unknown(path: &str) -> Status {
    let (service, method) = split(path);
    let text = match SERVICES.contains(&service) {
        true => format!("unknown method {method} for service {service}"),
        false => format!("unknown service {service}"),
    };
    Status::with(Code::Unimplemented, text)
}

fn split(path: &str) -> (&str, &str) {
    let path = path.trim_start_matches('/');
    path.rsplit_once('/').unwrap_or((path, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_is_not_there_is_named() {
        let status = unknown("/etcdserverpb.KV/Splice");
        assert_eq!(status.code, Code::Unimplemented);
        assert_eq!(
            status.message,
            "unknown method Splice for service etcdserverpb.KV"
        );
        let status = unknown("/made.up/Splice");
        assert_eq!(status.code, Code::Unimplemented);
        assert_eq!(status.message, "unknown service made.up");
    }
}
