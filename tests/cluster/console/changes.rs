//! Changes that are made in the page, and those that others make meanwhile.

use serde_json::json;

use crate::console::browser::Browser;
use crate::console::world::{World, wire};

/// No key is read until `answered` is put back.
const FAILING_READS: &str = "window.answered = window.fetch;
    window.fetch = (path, how) => path === '/v3/kv/range'
        ? Promise.reject(new TypeError('Failed to fetch')) : answered(path, how);";

/// Each transaction is answered, and the answer does not arrive.
const LOST_ANSWERS: &str = "window.fetch = async (path, how) => {
        const answer = await answered(path, how);
        if (path === '/v3/kv/txn') throw new TypeError('Failed to fetch');
        return answer;
    };";

#[test]
fn what_changed_meanwhile_is_never_overwritten_unseen() {
    let Some(browser) = Browser::open("edits in the console") else {
        return;
    };
    let world = World::start(1, &[]);
    world.put("app/config/limit", "{\"limit\": 1}", "0");
    world.put("app/config/limit", "{\"limit\": 2}", "0");
    browser.go(&world.page(0, "keys"));
    // By the keyboard alone: into the folders, to the key.
    browser.wait(
        "a folder",
        "document.querySelectorAll('.list .row').length === 1",
    );
    browser.keys(".list", "\u{e014}");
    browser.wait(
        "its folder",
        "document.querySelectorAll('.list .row').length === 2",
    );
    browser.keys(".list", "\u{e015}\u{e014}");
    browser.wait(
        "the key",
        "document.querySelectorAll('.list .row').length === 3",
    );
    browser.keys(".list", "\u{e015}\u{e007}");
    browser.sees("{\"limit\": 2}");
    // Its history, with what differs.
    browser.wait(
        "two steps",
        "document.querySelectorAll('.steps button').length === 2",
    );
    browser.click(".steps li button");
    browser.wait(
        "what went",
        "document.querySelector('.del')?.textContent === '{\"limit\": 1}'",
    );
    browser.wait(
        "what came",
        "document.querySelector('.add')?.textContent === '{\"limit\": 2}'",
    );
    // An edit that nobody comes before.
    browser.press("Edit");
    browser.fill("#editor textarea", "{\"limit\": 3}");
    // Whatever becomes of the next readings, it is told that it was saved.
    browser.run(FAILING_READS);
    browser.press("Save");
    browser.sees("The node does not answer.");
    browser.sees("Saved.");
    assert_eq!(world.value("app/config/limit").unwrap(), "{\"limit\": 3}");
    browser.run("window.fetch = answered;");
    browser.wait(
        "the key is read again",
        "!document.body.innerText.includes('does not answer')",
    );
    // A write whose answer is lost may have been made.
    browser.press("Edit");
    browser.fill("#editor textarea", "{\"limit\": 3.5}");
    browser.run(LOST_ANSWERS);
    browser.press("Save");
    browser.sees("it is not known whether it did this");
    browser.run("window.fetch = answered;");
    assert_eq!(world.value("app/config/limit").unwrap(), "{\"limit\": 3.5}");
    browser.press("Cancel");
    // One that loses a race.
    browser.press("Edit");
    browser.fill("#editor textarea", "{\"limit\": 4}");
    world.put("app/config/limit", "{\"limit\": 99}", "0");
    browser.press("Save");
    browser.sees("The key has changed meanwhile");
    assert_eq!(world.value("app/config/limit").unwrap(), "{\"limit\": 99}");
    browser.press("Edit again from mine");
    browser.press("Save");
    browser.sees("Saved.");
    assert_eq!(world.value("app/config/limit").unwrap(), "{\"limit\": 4}");
    // Deleted, and told that it is.
    browser.press("Delete");
    browser.click("dialog[open] button.bad");
    browser.sees("There is no such key now.");
    assert_eq!(world.value("app/config/limit"), None);
    browser.wait(
        "its end in the history",
        "document.querySelector('.steps').textContent.includes('deleted')",
    );
    // A new one, and one that is there already.
    for said in ["\"limit\"", "That key exists already"] {
        browser.press("New key");
        browser.fill("dialog[open] input", "app/config/limit");
        browser.fill("dialog[open] textarea", "{\"limit\": 5}");
        browser.press("Create");
        browser.sees(said);
    }
    // What is compacted is said to be.
    let revision = world.must(
        "/v3/kv/range",
        "",
        &json!({"key": wire("app/config/limit")}),
    );
    let revision = revision["header"]["revision"].clone();
    world.must("/v3/kv/compaction", "", &json!({"revision": revision}));
    browser.go(&world.page(0, "keys/app%2Fconfig%2F"));
    browser.click("[data-place='0']");
    browser.sees("is compacted.");
    assert!(
        browser.complaints().is_empty(),
        "{:?}",
        browser.complaints()
    );
}
