//! The lease that was typed: by its id, or by its name, which the cluster is asked for.
//!
//! A name may pass to another lease when that which has it ends. What follows the question is about the grant
//! that was found and about no other (T14).

use super::request::unexpected_body;
use crate::api;
use crate::api::{Consistency, ErrorKind, LeaseRef, LeaseTarget, Request, ResponseBody};
use crate::cli::arguments::lease::LeaseText;
use crate::cli::connection::Connection;
use crate::cli::failure::Failure;

/// The lease that is meant: of a name, the one that has it now.
///
/// # Errors
/// No lease has the name; what was typed may be an id or a name; those of the question.
pub(super) async fn find(
    typed: &LeaseText,
    connection: &impl Connection,
) -> Result<LeaseRef, Failure> {
    match typed {
        LeaseText::Id(id) => Ok(LeaseRef::id(*id)),
        LeaseText::Name(name) => Ok(named(name, connection).await?),
        LeaseText::Short { id, text } => match named(text, connection).await {
            Ok(lease) => Err(Failure::usage(format!(
                "{text} reads as the id of a lease, and lease {:016x} has it as its name: write name:{text} for \
                 that, or id:{text} for the lease with the id",
                lease.id
            ))),
            Err(error) if error.kind == ErrorKind::LeaseNotFound => Ok(LeaseRef::id(*id)),
            Err(error) => Err(error.into()),
        },
    }
}

/// The lease of a put: of a name, the one that has it when the put takes effect.
///
/// # Errors
/// Those of [`find`], but that no lease has the name.
pub(super) async fn target(
    typed: &LeaseText,
    connection: &impl Connection,
) -> Result<LeaseTarget, Failure> {
    match typed {
        LeaseText::Name(name) => Ok(LeaseTarget::Name(name.clone())),
        other => Ok(LeaseTarget::Lease(find(other, connection).await?)),
    }
}

async fn named(name: &str, connection: &impl Connection) -> Result<LeaseRef, api::Error> {
    let request = Request::LeaseNamed {
        name: name.to_owned(),
    };
    match connection.call(request, Consistency::default()).await?.body {
        ResponseBody::LeaseNamed(lease) => Ok(lease),
        other => Err(unexpected_body(&other)),
    }
}
