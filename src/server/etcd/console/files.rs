//! The files of the page, which are part of the binary.

use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::server::etcd::grpc::Reply;

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal $kind:ident;)*) => {
        const FILES: &[File] = &[$(File {
            name: $name,
            kind: $kind,
            text: include_str!(concat!("page/", $name)),
        }),*];
    };
}

files! {
    "index.html" HTML;
    "style.css" STYLE;
    "icon.svg" IMAGE;
    "main.js" SCRIPT;
    "api.js" SCRIPT;
    "known.js" SCRIPT;
    "parts.js" SCRIPT;
    "cluster.js" SCRIPT;
    "keys.js" SCRIPT;
    "record.js" SCRIPT;
    "leases.js" SCRIPT;
    "locks.js" SCRIPT;
    "watch.js" SCRIPT;
}

/// The file `name`; the page itself if it is empty.
pub(super) fn file(name: &str) -> Response<Reply> {
    let name = if name.is_empty() { "index.html" } else { name };
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let mut response = Response::new(Reply::of(
            "there is no such file: the console is at /console/\n".into(),
        ));
        *response.status_mut() = StatusCode::NOT_FOUND;
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        return response;
    };
    let mut response = Response::new(Reply::of(Bytes::from_static(file.text.as_bytes())));
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, file.kind),
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Another version of the binary has other files under the same names.
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_has_nothing_inline() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes <= 80 << 10, "{bytes} bytes");
        for file in FILES {
            let is_html = file.kind == HTML;
            for word in ["style=\"", "<style", " onclick", "javascript:"] {
                assert!(
                    !is_html || !file.text.contains(word),
                    "{}: {word}",
                    file.name
                );
            }
            // What a cluster holds is never taken for markup.
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!file.text.contains(word), "{}: {word}", file.name);
            }
        }
    }

    #[test]
    fn only_what_is_there_is_served() {
        assert_eq!(file("").headers()[CONTENT_TYPE], HTML);
        assert_eq!(file("main.js").status(), 200);
        for name in ["../mod.rs", "main.js/", "MAIN.JS", "page/main.js"] {
            assert_eq!(file(name).status(), 404, "{name}");
        }
    }

    /// The luminance of a colour such as `#fff` or `#a0abb3` (WCAG 2.2, relative luminance).
    fn luminance(colour: &str) -> f64 {
        let digits = colour.trim_start_matches('#');
        let width = digits.len() / 3;
        let part = |place: usize| {
            let digits = &digits[place * width..(place + 1) * width];
            let part = u8::from_str_radix(&digits.repeat(2 / width), 16).unwrap();
            let part = f64::from(part) / 255.0;
            match part <= 0.04045 {
                true => part / 12.92,
                false => ((part + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
    }

    /// A row that has just changed is looked at by chance in the browser: its ground fades.
    #[test]
    fn all_that_is_written_can_be_read_on_every_ground_in_light_and_dark() {
        let style = FILES.iter().find(|file| file.kind == STYLE);
        let style = style.expect("there is a sheet of style").text;
        let themes: Vec<&str> = style.split(":root {").skip(1).collect();
        assert_eq!(themes.len(), 2, "light and dark");
        for theme in themes {
            let colour = |name: &str| {
                let begin = format!("--{name}: ");
                let (_, rest) = theme.split_once(&begin).unwrap();
                luminance(rest.split_once(';').unwrap().0)
            };
            for text in ["text", "soft", "accent", "warn", "bad"] {
                for ground in ["back", "card", "flash"] {
                    let (text_light, ground_light) = (colour(text), colour(ground));
                    let lighter = text_light.max(ground_light) + 0.05;
                    let contrast = lighter / (text_light.min(ground_light) + 0.05);
                    assert!(contrast >= 4.5, "{text} on {ground}: {contrast:.2}");
                }
            }
        }
    }
}
