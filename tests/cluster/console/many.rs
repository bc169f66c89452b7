//! A hundred thousand keys.

use serde_json::{Value, json};

use crate::console::browser::Browser;
use crate::console::world::{World, wire};

const KEYS: usize = 100_000;
const AT_ONCE: usize = 100;

#[test]
fn a_hundred_thousand_keys_scroll_to_their_end_and_few_rows_exist() {
    let Some(browser) = Browser::open("the console with 100,000 keys") else {
        return;
    };
    let world = World::start(1, &[]);
    std::thread::scope(|scope| {
        for part in 0..8 {
            let world = &world;
            scope.spawn(move || {
                for first in (part * AT_ONCE..KEYS).step_by(8 * AT_ONCE) {
                    let puts = (first..first + AT_ONCE).map(|number| {
                        json!({"request_put": {"key": wire(format!("many/{number:06}")), "value": "eA=="}})
                    });
                    let puts: Vec<Value> = puts.collect();
                    world.must("/v3/kv/txn", "", &json!({"success": puts}));
                }
            });
        }
    });
    browser.go(&world.page(0, "keys/many%2F"));
    browser.sees("100,000 keys");
    browser.sees("000000");
    let end = "const list = document.querySelector('.list'); list.scrollTop = list.scrollHeight; \
               return list.scrollHeight";
    crate::harness::eventually("the last key", || {
        browser.run(end);
        let seen = browser.run(
            "return [...document.querySelectorAll('.list .row')].some(row => row.textContent === '099999')",
        );
        (seen == true).then_some(())
    });
    let rows = browser.run("return document.querySelectorAll('.list .row').length");
    assert!(rows.as_u64().unwrap() < 100, "{rows} rows exist");
    // By the keyboard back to the first.
    browser.keys(".list", "\u{e011}");
    browser.sees("000000");
    browser.keys(".list", "\u{e007}");
    browser.sees("version");
    // A change of one that is shown reaches its row.
    browser.run(
        "window.flashes = 0; document.addEventListener('animationstart', event => { flashes += event.animationName === 'flash'; });",
    );
    world.put("many/000001", "y", "0");
    browser.wait(
        "its row flashes",
        "document.querySelector('.list .flash') !== null && flashes",
    );
    browser.run("window.before = flashes;");
    world.put("many/000001", "z", "0");
    browser.wait("and does at the next change", "flashes > before");
    assert!(
        browser.complaints().is_empty(),
        "{:?}",
        browser.complaints()
    );
}
