//! Requests as JSON, written here without the server's help: names and values in all the forms that etcd
//! reads, one after the other.

mod services;

pub(crate) use services::path_in_json;

use super::kv::{
    CompactionRequest, Compare, CompareUnion, DeleteRangeRequest, PutRequest, RangeRequest,
    RequestOp, RequestUnion, TxnRequest,
};

/// A request that can be written.
pub(crate) trait Json {
    /// Adds its fields.
    fn write(&self, object: &mut Object);

    /// Its text; `form` chooses which of the forms come first.
    fn json(&self, form: usize) -> String {
        let mut object = Object {
            fields: Vec::new(),
            form,
        };
        self.write(&mut object);
        object.text()
    }
}

/// An object that is being written.
pub(crate) struct Object {
    fields: Vec<String>,
    form: usize,
}

impl Object {
    fn text(self) -> String {
        format!("{{{}}}", self.fields.join(","))
    }

    /// Adds a field with the text of its value.
    fn field(&mut self, name: &str, value: &str) {
        self.form += 1;
        let name = match self.form % 3 {
            0 => camel(name),
            _ => name.to_owned(),
        };
        self.fields.push(format!("\"{name}\":{value}"));
    }

    fn number(&mut self, name: &str, value: i64) {
        match self.form % 4 {
            0 if value == 0 => {}
            1 => self.field(name, &value.to_string()),
            _ => self.field(name, &format!("\"{value}\"")),
        }
    }

    fn unsigned(&mut self, name: &str, value: u64) {
        match self.form % 4 {
            0 if value == 0 => {}
            1 => self.field(name, &value.to_string()),
            _ => self.field(name, &format!("\"{value}\"")),
        }
    }

    /// A text without what would have to be escaped.
    fn text_of(&mut self, name: &str, value: &str) {
        if value.is_empty() && self.form.is_multiple_of(2) {
            return;
        }
        self.field(name, &format!("\"{value}\""));
    }

    fn texts(&mut self, name: &str, values: &[String]) {
        let texts: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
        self.field(name, &format!("[{}]", texts.join(",")));
    }

    fn option(&mut self, name: &str, message: Option<&impl Json>) {
        if let Some(message) = message {
            self.message(name, message);
        }
    }

    fn flag(&mut self, name: &str, value: bool) {
        match (value, self.form % 5) {
            (false, 0..3) => {}
            (false, 3) => self.field(name, "null"),
            _ => self.field(name, if value { "true" } else { "false" }),
        }
    }

    fn bytes(&mut self, name: &str, value: &[u8]) {
        if value.is_empty() && self.form.is_multiple_of(2) {
            return;
        }
        self.field(name, &format!("\"{}\"", base64(value)));
    }

    fn value_of(&mut self, name: &str, names: &[&str], value: i32) {
        let known = usize::try_from(value).ok().and_then(|at| names.get(at));
        match (self.form % 2, known) {
            (1, Some(known)) => self.field(name, &format!("\"{known}\"")),
            _ => self.field(name, &value.to_string()),
        }
    }

    fn message(&mut self, name: &str, message: &impl Json) {
        let text = message.json(self.form);
        self.field(name, &text);
    }

    fn list<M: Json>(&mut self, name: &str, list: &[M]) {
        if list.is_empty() && self.form.is_multiple_of(2) {
            return;
        }
        let texts: Vec<String> = list.iter().map(|it| it.json(self.form)).collect();
        self.field(name, &format!("[{}]", texts.join(", ")));
    }
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at(1);
        camel.push_str(&first.to_ascii_uppercase());
        camel.push_str(rest);
    }
    camel
}

/// Padded, of the common alphabet: etcd reads no other.
fn base64(value: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in value.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place > part.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
}

impl Json for RangeRequest {
    fn write(&self, object: &mut Object) {
        let targets = ["KEY", "VERSION", "CREATE", "MOD", "VALUE"];
        object.bytes("key", &self.key);
        object.bytes("range_end", &self.range_end);
        object.number("limit", self.limit);
        object.number("revision", self.revision);
        object.value_of(
            "sort_order",
            &["NONE", "ASCEND", "DESCEND"],
            self.sort_order,
        );
        object.value_of("sort_target", &targets, self.sort_target);
        object.flag("serializable", self.serializable);
        object.flag("keys_only", self.keys_only);
        object.flag("count_only", self.count_only);
        object.number("min_mod_revision", self.min_mod_revision);
        object.number("max_mod_revision", self.max_mod_revision);
        object.number("min_create_revision", self.min_create_revision);
        object.number("max_create_revision", self.max_create_revision);
    }
}

impl Json for PutRequest {
    fn write(&self, object: &mut Object) {
        object.bytes("key", &self.key);
        object.bytes("value", &self.value);
        object.number("lease", self.lease);
        object.flag("prev_kv", self.prev_kv);
        object.flag("ignore_value", self.ignore_value);
        object.flag("ignore_lease", self.ignore_lease);
    }
}

impl Json for DeleteRangeRequest {
    fn write(&self, object: &mut Object) {
        object.bytes("key", &self.key);
        object.bytes("range_end", &self.range_end);
        object.flag("prev_kv", self.prev_kv);
    }
}

impl Json for CompactionRequest {
    fn write(&self, object: &mut Object) {
        object.number("revision", self.revision);
        object.flag("physical", self.physical);
    }
}

impl Json for Compare {
    fn write(&self, object: &mut Object) {
        let results = ["EQUAL", "GREATER", "LESS", "NOT_EQUAL"];
        let targets = ["VERSION", "CREATE", "MOD", "VALUE", "LEASE"];
        object.value_of("result", &results, self.result);
        object.value_of("target", &targets, self.target);
        object.bytes("key", &self.key);
        // What is given is given, a zero as well.
        match &self.target_union {
            None => {}
            Some(CompareUnion::Version(number)) => object.field("version", &number.to_string()),
            Some(CompareUnion::CreateRevision(number)) => {
                object.field("create_revision", &number.to_string());
            }
            Some(CompareUnion::ModRevision(number)) => {
                object.field("mod_revision", &number.to_string());
            }
            Some(CompareUnion::Value(value)) => {
                object.field("value", &format!("\"{}\"", base64(value)));
            }
            Some(CompareUnion::Lease(number)) => object.field("lease", &number.to_string()),
        }
        object.bytes("range_end", &self.range_end);
    }
}

impl Json for RequestOp {
    fn write(&self, object: &mut Object) {
        match &self.request {
            None => {}
            Some(RequestUnion::RequestRange(range)) => object.message("request_range", range),
            Some(RequestUnion::RequestPut(put)) => object.message("request_put", put),
            Some(RequestUnion::RequestDeleteRange(delete)) => {
                object.message("request_delete_range", delete);
            }
            Some(RequestUnion::RequestTxn(txn)) => object.message("request_txn", txn),
        }
    }
}

impl Json for TxnRequest {
    fn write(&self, object: &mut Object) {
        object.list("compare", &self.compare);
        object.list("success", &self.success);
        object.list("failure", &self.failure);
    }
}
