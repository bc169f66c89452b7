//! Writes behind a fence: transactions that compare first ([`Fence`](crate::api::Fence)).

use std::time::Duration;

use super::Client;
use super::response::unexpected_response;
use crate::api::{
    DeleteRangeRequest, DeleteRangeResponse, Error, ErrorKind, Fence, Outcome, PutRequest,
    PutResponse, Request, ResponseBody, ResponseHeader, TxnOp, TxnOpResponse, TxnRequest,
};

impl Client {
    pub(super) async fn fenced_put(
        &self,
        fences: &[Fence],
        put: PutRequest,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, PutResponse), Error> {
        match self.fenced(fences, TxnOp::Put(put), timeout).await? {
            (header, TxnOpResponse::Put(put)) => Ok((header, put)),
            _ => Err(mixed_up()),
        }
    }

    pub(super) async fn fenced_delete(
        &self,
        fences: &[Fence],
        delete: DeleteRangeRequest,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, DeleteRangeResponse), Error> {
        let op = TxnOp::DeleteRange(delete);
        match self.fenced(fences, op, timeout).await? {
            (header, TxnOpResponse::DeleteRange(delete)) => Ok((header, delete)),
            _ => Err(mixed_up()),
        }
    }

    async fn fenced(
        &self,
        fences: &[Fence],
        op: TxnOp,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, TxnOpResponse), Error> {
        let request = Request::Txn(TxnRequest::fenced(fences, op)?);
        match self.write(request, timeout).await? {
            (header, ResponseBody::Txn(txn)) => Ok((header, txn.into_fenced()?)),
            (_, other) => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }
}

pub(super) fn mixed_up() -> Error {
    Error::unknown(
        ErrorKind::Internal,
        "the server's reply belongs to another fenced write",
    )
}
