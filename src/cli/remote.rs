//! The connection that is a real one: the SDK behind the seam of `connection`.

use bytes::Bytes;

use super::connection::{Connection, Connector, Login, Target};
use crate::api::{Consistency, Error, Request, Response, ResponseBody};
use crate::client::{Client, ConnectOptions, TlsOptions, WatchOptions, Watcher};

/// Connects through the SDK.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sdk;

/// A connection through the SDK.
#[derive(Debug)]
pub struct SdkConnection {
    client: Client,
}

/// What every client of the command line trusts, its identity, and its timeout.
pub(super) fn options(target: &Target) -> ConnectOptions {
    let tls = TlsOptions::new()
        .ca_pem_file(&target.cacert)
        .identity_pem_files(&target.cert, &target.key);
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_timeout(target.timeout)
        .with_connect_timeout(target.connect_timeout);
    match &target.login {
        None => options,
        Some(Login::Password(user, password)) => options.with_user(user, password.reveal()),
        Some(Login::TokenFile(path)) => options.with_token_file(path),
    }
}

impl Connector for Sdk {
    type Connection = SdkConnection;

    async fn connect(&self, target: &Target) -> Result<SdkConnection, Error> {
        let options = options(target)
            .with_client_name("leasehold-cli")
            // A session for one write costs a second one, and outlives the process by an hour. Who
            // has not asked for it sees an unknown outcome as exit code 4.
            .with_exactly_once(target.exactly_once);
        let client = Client::connect(target.endpoints.iter().cloned(), Some(options)).await?;
        let client = match target.traceparent {
            Some(parent) => client.with_traceparent(parent),
            None => client,
        };
        let client = client.with_priority(target.priority);
        Ok(SdkConnection { client })
    }
}

impl Connection for SdkConnection {
    async fn call(&self, request: Request, consistency: Consistency) -> Result<Response, Error> {
        self.client.call(request, consistency).await
    }

    async fn status(&self, endpoint: &str) -> Result<Response, Error> {
        let answer = self.client.status(endpoint).await?;
        let body = ResponseBody::Status(Box::new(answer.status));
        Ok(Response {
            header: answer.header,
            body,
        })
    }

    async fn watch(&self, key: Bytes, options: WatchOptions) -> Result<Watcher, Error> {
        self.client.watch(key, Some(options)).await
    }

    fn client(&self) -> Result<Client, Error> {
        Ok(self.client.clone())
    }

    async fn close(self) {
        self.client.close().await;
    }
}
