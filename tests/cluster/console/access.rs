//! The console where access is controlled.

use serde_json::{Value, json};

use crate::console::browser::Browser;
use crate::console::world::{World, wire};

/// Access for root, and for a user who may read and write one prefix.
fn control(world: &World) -> String {
    let user = |name: &str| json!({"name": name, "password": "correct horse"});
    for name in ["root", "ann"] {
        world.must("/v3/auth/user/add", "", &user(name));
    }
    world.must(
        "/v3/auth/user/grant",
        "",
        &json!({"user": "root", "role": "root"}),
    );
    world.must("/v3/auth/role/add", "", &json!({"name": "team"}));
    let permission =
        json!({"permType": "READWRITE", "key": wire("team/"), "range_end": wire("team0")});
    world.must(
        "/v3/auth/role/grant",
        "",
        &json!({"name": "team", "perm": permission}),
    );
    world.must(
        "/v3/auth/user/grant",
        "",
        &json!({"user": "ann", "role": "team"}),
    );
    world.put("team/a", "1", "0");
    world.put("other/b", "2", "0");
    world.must("/v3/auth/enable", "", &json!({}));
    let login = world.must("/v3/auth/authenticate", "", &user("root"));
    login["token"].as_str().unwrap().to_owned()
}

fn log_in(browser: &Browser, name: &str, password: &str) {
    browser.fill("dialog[open] [name=user]", name);
    browser.fill("dialog[open] [name=password]", password);
    browser.click("dialog[open] button.main");
}

#[test]
fn a_user_sees_and_changes_what_the_rules_permit() {
    let Some(browser) = Browser::open("the console where access is controlled") else {
        return;
    };
    let world = World::start(1, &[]);
    let token = control(&world);
    // Nobody is told anything without a login.
    for path in [
        "/v3/leasehold/status",
        "/v3/leasehold/status/stream",
        "/v3/leasehold/leases",
    ] {
        let mut connection = crate::etcd::http::Connection::open(world.ports[0]);
        let answer = connection.request("GET", path, "", "");
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        assert!(!answer.body.contains("members"), "{answer:?}");
    }
    let moved = world.ask(0, "/v3/leasehold/move-leader", "", &json!({}));
    assert_eq!(moved.status, 400, "{moved:?}");
    browser.go(&world.page(0, "keys"));
    log_in(&browser, "ann", "wrong");
    browser.sees("That did not work");
    log_in(&browser, "ann", "correct horse");
    browser.sees("You may not read the keys below");
    browser.click("a[href='#keys/team%2F']");
    browser.wait(
        "her key",
        "document.querySelectorAll('.list .row').length === 1",
    );
    browser.click("[data-place='0']");
    browser.press("Edit");
    browser.fill("#editor textarea", "changed");
    browser.press("Save");
    browser.sees("Saved.");
    browser.press("New key");
    browser.fill("dialog[open] input", "other/c");
    browser.press("Create");
    browser.sees("You may not write this key");
    // She may look at the cluster, and hand nothing over.
    browser.go(&world.page(0, "cluster"));
    browser.wait(
        "the lease",
        "document.getElementById('lease-state').textContent === 'valid'",
    );
    let login = json!({"name": "ann", "password": "correct horse"});
    let own = world.must("/v3/auth/authenticate", "", &login);
    let refused = world.ask(
        0,
        "/v3/leasehold/move-leader",
        own["token"].as_str().unwrap(),
        &json!({}),
    );
    assert_eq!(refused.status, 403, "{refused:?}");
    // Her password changes, and with it her token ends: the page says so and asks.
    let change = json!({"name": "ann", "password": "another one"});
    world.must("/v3/auth/user/changepw", &token, &change);
    browser.sees("The token has ended: log in again.");
    log_in(&browser, "ann", "another one");
    browser.wait(
        "live again",
        "document.getElementById('link').textContent.includes('live')",
    );
    // Nothing of it stays in the browser.
    let kept = browser.run("return [document.cookie, localStorage.length, sessionStorage.length]");
    assert_eq!(kept, json!(["", 0, 0]));
    assert_eq!(browser.complaints(), [""; 0]);
    browser.click("#account");
    browser.wait(
        "logged out",
        "document.querySelector('dialog[open]') !== null",
    );
    assert_ne!(
        Value::Null,
        world.must("/v3/auth/status", &token, &json!({}))
    );
}
