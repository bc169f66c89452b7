//! A real browser, driven over the JSON protocol of WebDriver (W3C) by a process beside it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::etcd::http::Connection;
use crate::harness::{PATIENCE, eventually, eventually_told, free_port, left_out};

/// What marks an element in answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

/// A program on the path.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Whether the driver takes a session: it resets connections that come too early.
fn is_ready(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /status HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    // It keeps the connection open. If this is a part of its answer only, it is asked again.
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).contains("\"ready\":true"))
}

impl Browser {
    /// A new one; none, and a loud remark, if there is no browser here and there need not be.
    pub(crate) fn open(test: &str) -> Option<Self> {
        let (Some(browser), Some(driver)) = (program("chromium"), program("chromedriver")) else {
            assert!(
                std::env::var_os("LEASEHOLD_REQUIRE_BROWSER").is_none(),
                "there is no browser: install Debian's packages `chromium` and `chromium-driver`"
            );
            left_out(&format!(
                "{test}: needs Debian's packages `chromium` and `chromium-driver`"
            ));
            return None;
        };
        let port = free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let driver = Command::new(driver)
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the driver of the browser runs");
        let mut this = Self {
            driver,
            address,
            session: String::new(),
        };
        eventually("the driver of the browser", || {
            is_ready(address).ok()?.then_some(())
        });
        let options = json!({
            "binary": browser,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--disable-extensions", "--disable-background-networking",
                "--disable-component-update", "--hide-scrollbars", "--window-size=1280,860"],
        });
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = this.call("POST", "/session", &wanted);
        this.session = session["sessionId"].as_str().unwrap().to_owned();
        Some(this)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.attempt(method, path, body)
            .unwrap_or_else(|problem| panic!("{method} {path} {body}: {problem}"))
    }

    fn attempt(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = match method {
            "GET" | "DELETE" => String::new(),
            _ => body.to_string(),
        };
        let headers = "Content-Type: application/json\r\n";
        let answer = Connection::open(self.address).request(method, path, headers, &body);
        let document: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        match answer.status {
            200 => Ok(document["value"].clone()),
            _ => Err(document["value"]["message"].to_string()),
        }
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}/{name}", self.session), body)
    }

    /// A command of the protocol of the browser's own tools.
    pub(crate) fn tool(&self, name: &str, parameters: &Value) -> Value {
        self.command(
            "goog/cdp/execute",
            &json!({"cmd": name, "params": parameters}),
        )
    }

    /// Opens a page.
    pub(crate) fn go(&self, url: &str) {
        self.command("url", &json!({"url": url}));
    }

    /// Runs a script in the page and gives what it returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression of the page is true, and gives it.
    pub(crate) fn wait(&self, what: &str, expression: &str) -> Value {
        let script = format!("try {{ return {expression}; }} catch (error) {{ return null; }}");
        let mut shown = String::new();
        let page = "return document.body.innerText.slice(0, 4000)";
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(what, || {
                let found = self.run(&script);
                let is_true = match &found {
                    Value::Null => false,
                    Value::Bool(is_true) => *is_true,
                    Value::String(text) => !text.is_empty(),
                    Value::Number(number) => number.as_f64() != Some(0.0),
                    _ => true,
                };
                is_true.then_some(found)
            })
        }));
        seen.unwrap_or_else(|_| {
            shown.push_str(self.run(page).as_str().unwrap_or_default());
            panic!("waited for: {what} ({expression}). The page shows:\n{shown}")
        })
    }

    /// Waits until the page shows a text.
    pub(crate) fn sees(&self, text: &str) {
        let text = Value::from(text);
        self.wait(
            &format!("the page shows {text}"),
            &format!("document.body.innerText.includes({text})"),
        );
    }

    fn element(&self, css: &str) -> String {
        eventually(css, || {
            let path = format!("/session/{}/element", self.session);
            let wanted = json!({"using": "css selector", "value": css});
            let found = self.attempt("POST", &path, &wanted).ok()?;
            Some(found[ELEMENT].as_str()?.to_owned())
        })
    }

    /// Clicks what `css` finds, as a user would: it must be in view and not covered.
    pub(crate) fn click(&self, css: &str) {
        eventually_told(&format!("{css} can be clicked"), || {
            let element = self.element(css);
            let path = format!("/session/{}/element/{element}/click", self.session);
            self.attempt("POST", &path, &json!({}))
        });
    }

    /// Clicks the button with this text.
    pub(crate) fn press(&self, text: &str) {
        let text = Value::from(text);
        let mark = format!(
            "(() => {{ const all = [...document.querySelectorAll('dialog[open] button, button')]; \
             const found = all.find(each => each.textContent === {text} && !each.disabled && each.checkVisibility()); \
             document.querySelectorAll('[data-test]').forEach(each => each.removeAttribute('data-test')); \
             found?.setAttribute('data-test', 'press'); return Boolean(found); }})()"
        );
        eventually(&format!("the button {text} can be pressed"), || {
            let found = self.run(&format!("return {mark}"));
            if found != true {
                return None;
            }
            let path = format!("/session/{}/element", self.session);
            let wanted = json!({"using": "css selector", "value": "[data-test=press]"});
            let element = self.attempt("POST", &path, &wanted).ok()?;
            let element = element[ELEMENT].as_str()?.to_owned();
            let path = format!("/session/{}/element/{element}/click", self.session);
            self.attempt("POST", &path, &json!({})).ok().map(drop)
        });
    }

    /// Types into what `css` finds, in place of what is there.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        let element = self.element(css);
        let at = format!("element/{element}");
        self.command(&format!("{at}/clear"), &json!({}));
        self.command(&format!("{at}/value"), &json!({"text": text}));
    }

    /// Presses keys where the focus is.
    pub(crate) fn keys(&self, css: &str, text: &str) {
        let element = self.element(css);
        self.command(&format!("element/{element}/value"), &json!({"text": text}));
    }

    /// Makes the window so large, and light or dark.
    pub(crate) fn look(&self, width: u32, height: u32, scheme: &str) {
        self.tool(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.tool(
            "Emulation.setEmulatedMedia",
            &json!({"features": [feature]}),
        );
    }

    /// Writes a picture of the window to a file.
    pub(crate) fn picture(&self, file: &Path) {
        let taken = self.tool("Page.captureScreenshot", &json!({"format": "png"}));
        let bytes = STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    /// What the browser has logged since this was last asked.
    fn log(&self, kind: &str) -> Vec<Value> {
        let log = self.command("se/log", &json!({"type": kind}));
        log.as_array().cloned().unwrap_or_default()
    }

    /// The addresses of all requests since this was last asked.
    pub(crate) fn requests(&self) -> Vec<String> {
        let entries = self.log("performance");
        let messages = entries.iter().filter_map(|entry| entry["message"].as_str());
        let messages = messages.filter_map(|text| serde_json::from_str::<Value>(text).ok());
        messages
            .filter(|message| message["message"]["method"] == "Network.requestWillBeSent")
            .filter_map(|message| {
                let url = &message["message"]["params"]["request"]["url"];
                url.as_str().map(str::to_owned)
            })
            .collect()
    }

    /// What scripts and policies complained of: errors, but not requests that were refused.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.log("browser");
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        let texts = severe.filter_map(|entry| entry["message"].as_str().map(str::to_owned));
        texts
            .filter(|text| !text.contains("Failed to load resource") && !text.contains("net::ERR_"))
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session, its driver by itself.
        let _ = self.attempt("DELETE", &format!("/session/{}", self.session), &json!({}));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
