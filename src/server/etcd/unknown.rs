//! Methods that are not there.

use crate::etcd::status::{Code, Status};

/// The refusal of a method that is not there.
pub(super) fn unknown(path: &str) -> Status {
    let mut parts = path.trim_start_matches('/').splitn(2, '/');
    let (service, method) = (parts.next(), parts.next());
    Status::with(
        Code::Unimplemented,
        format!(
            "unknown method {} for service {}",
            method.unwrap_or_default(),
            service.unwrap_or_default()
        ),
    )
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
    }
}
