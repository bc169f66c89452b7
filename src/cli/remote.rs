//! The connection that is a real one: the SDK behind the seam of `connection`.

use super::connection::{Connection, Connector, Target};
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::Request;
use crate::api::Response;

/// Connects through the SDK.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sdk;

/// A connection through the SDK.
#[derive(Debug)]
pub struct SdkConnection {}

impl Connector for Sdk {
    type Connection = SdkConnection;

    async fn connect(&self, target: &Target) -> Result<SdkConnection, Error> {
        // MERGE: Client::connect(target.endpoints, ConnectOptions with target's files and timeout).
        Err(Error::not_applied(
            ErrorKind::ConnectFailed,
            format!(
                "no client is built in yet to reach {}",
                target.endpoints.join(" ")
            ),
        ))
    }
}

impl Connection for SdkConnection {
    async fn call(&self, _: Request, _: Consistency) -> Result<Response, Error> {
        unreachable!("no connection is ever made")
    }

    async fn status(&self, _: &str) -> Result<Response, Error> {
        unreachable!("no connection is ever made")
    }

    async fn close(self) {}
}
