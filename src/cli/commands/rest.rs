//! What of a range did not fit its first reply: read page by page, at the same revision.

use std::io::Write;

use super::request::unexpected;
use crate::api;
use crate::api::{
    KeyRange, RangeRequest, RangeResponse, Request, ResponseBody, ResponseHeader, successor,
};
use crate::cli::arguments::Format;
use crate::cli::connection::Connection;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::print::{Parts, View};

/// Prints `first`, the beginning of what `asked` asks for, and all that follows. What is meant for
/// people is printed as it comes; what is one document is held until it is whole.
pub(super) async fn print(
    first: RangeResponse,
    asked: RangeRequest,
    (parts, view): (Parts, View),
    (connection, consistency): (&impl Connection, api::Consistency),
    header: &ResponseHeader,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_one_document = view.format != Format::Simple;
    let (_, end) = asked.range.bounds(&asked.key);
    let mut next = first.kvs.last().map(|last| successor(&last.key));
    let mut found = first;
    found.more = false;
    while let Some(key) = next {
        if !is_one_document {
            print::get(out, view, parts, header, &found)?;
            found.kvs.clear();
        }
        let request = Request::RangePage(RangeRequest {
            key,
            range: match &end {
                Some(end) => KeyRange::Until(end.clone()),
                None => KeyRange::From,
            },
            revision: match asked.revision {
                0 => header.revision,
                past => past,
            },
            ..asked.clone()
        });
        let response = connection.call(request, consistency).await?;
        let ResponseBody::RangePage(page) = response.body else {
            return Err(unexpected(&response.body));
        };
        found.kvs.extend(page.kvs);
        next = page.next;
    }
    Ok(print::get(out, view, parts, header, &found)?)
}
