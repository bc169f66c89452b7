//! Every view, on a cluster whose leader is handed over and killed while the page is open.

use std::path::PathBuf;

use serde_json::Value;

use crate::console::browser::Browser;
use crate::console::world::{World, wire};
use crate::harness::left_out;

/// Keys and values that a page could take for something else.
pub(crate) const HOSTILE: [(&[u8], &[u8]); 4] = [
    (
        b"hostile/<script>window.bad=1</script>",
        b"<img src=x onerror='window.bad=1'><script>window.bad=1</script>",
    ),
    (
        "hostile/\u{202e}gpj.exe".as_bytes(),
        "safe\u{202e}\u{2066}evil\u{200b}".as_bytes(),
    ),
    (b"hostile/\xff\xfe\x00", b"\xc3\x28\x00\xff"),
    (
        b"hostile/javascript:window.bad=1",
        b"{\"__proto__\": {\"bad\": 1}}",
    ),
];

/// Says what the page offends against by axe-core's rules, in the view that is open.
pub(crate) fn check_accessibility(browser: &Browser, view: &str) {
    let folder = std::env::var_os("LEASEHOLD_AXE").map_or_else(
        || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../tools/axe-core"),
        PathBuf::from,
    );
    let Ok(axe) = std::fs::read_to_string(folder.join("axe.min.js")) else {
        left_out("the console's accessibility: needs axe-core, of npm, in target/tools");
        return;
    };
    // Past the page's own policy, by way of the browser's tools.
    browser.tool("Runtime.evaluate", &serde_json::json!({"expression": axe}));
    let found = browser.tool(
        "Runtime.evaluate",
        &serde_json::json!({
            "expression": "axe.run().then(found => JSON.stringify(found.violations.map(each => \
                [each.id, each.nodes.map(node => node.html + ' ' + node.failureSummary)])))",
            "awaitPromise": true, "returnByValue": true,
        }),
    );
    assert_eq!(found["result"]["value"], "[]", "{view}: {found}");
}

#[test]
fn the_cluster_is_shown_while_its_leader_is_handed_over_and_killed() {
    let Some(browser) = Browser::open("the console's view of the cluster") else {
        return;
    };
    let mut world = World::start(3, &[]);
    let watcher = world.follower();
    let names: Vec<String> = world
        .cluster
        .nodes
        .iter()
        .map(|node| node.name.clone())
        .collect();
    browser.go(&world.page(watcher, "cluster"));
    let leads = |name: &str| {
        browser.wait(
            &format!("{name} leads"),
            &format!(
                "document.querySelector('#lease h3').textContent === 'Leader lease of {name}' && \
                 document.getElementById('lease-state').textContent === 'valid'"
            ),
        );
    };
    // On a busy machine not the one of the start.
    let shown = browser.wait(
        "somebody leads",
        "document.getElementById('lease-state').textContent === 'valid' && \
         document.querySelector('#lease h3').textContent",
    );
    let shown = shown.as_str().unwrap();
    let leader = names.iter().position(|name| shown.ends_with(name));
    let leader = leader.unwrap();
    let other = (0..3).find(|place| *place != leader && *place != watcher);
    let other = other.unwrap();
    browser.wait(
        "all members",
        "document.querySelectorAll('#members section').length === 3",
    );
    check_accessibility(&browser, "cluster");
    // Handed over at a node that does not lead.
    browser.press(&format!("Hand leadership to {}", names[other]));
    browser.press("Hand over");
    browser.sees(&format!("has handed leadership to {}", names[other]));
    leads(&names[other]);
    world.leader = other;
    // Killed: the bar is empty until another member leads.
    world.cluster.nodes[other].kill();
    browser.wait(
        "the lease ends, and another member takes it",
        &format!(
            "document.getElementById('lease-state').textContent === 'valid' && \
             !document.querySelector('#lease h3').textContent.endsWith({})",
            Value::from(names[other].as_str())
        ),
    );
    browser.wait(
        "the dead member is silent",
        "[...document.querySelectorAll('#members .tag')].some(tag => tag.textContent === 'silent')",
    );
    // The node of the page itself stops, and comes back.
    world.cluster.nodes[watcher].kill();
    browser.wait(
        "the page says so",
        "document.getElementById('link').textContent.startsWith('Connection lost')",
    );
    world.cluster.nodes[watcher].start();
    browser.wait(
        "the page comes back by itself",
        "document.getElementById('link').textContent.includes('live')",
    );
    assert!(
        browser.complaints().is_empty(),
        "{:?}",
        browser.complaints()
    );
}

#[test]
fn what_a_cluster_holds_is_shown_and_never_run() {
    let Some(browser) = Browser::open("the console's other views") else {
        return;
    };
    let world = World::start(1, &[]);
    for (key, value) in HOSTILE {
        world.put(key, value, "0");
    }
    world.put("zeros", vec![0; 1 << 20], "0");
    let lease = world.grant(600);
    let id: i64 = lease.parse().unwrap();
    world.put(format!("locks/nightly/{id:x}"), "<b>worker-1</b>", &lease);
    let waiter = world.grant(500);
    let waiting: i64 = waiter.parse().unwrap();
    world.put(format!("locks/nightly/{waiting:x}"), "worker-2", &waiter);
    browser.go(&world.page(0, "keys/hostile%2F"));
    browser.wait(
        "four keys",
        "document.querySelectorAll('.list .row').length === 4",
    );
    // One of them has a slash, and so lies in a folder.
    browser.click("[data-place='0']");
    browser.wait(
        "the folder and its key",
        "document.querySelectorAll('.list .row').length === 5",
    );
    for place in 1..5 {
        browser.click(&format!("[data-place='{place}']"));
        browser.wait(
            "its value",
            "document.querySelector('#record pre').textContent.length > 3",
        );
        for form in ["hex", "json", "text"] {
            browser.click(&format!("[data-form={form}]"));
        }
        browser.sees("This is all.");
        if place == 1 {
            browser.sees("<script>window.bad=1</script>");
        }
    }
    browser.sees("U+202E");
    browser.sees("\\xff\\xfe");
    check_accessibility(&browser, "keys");
    browser.go(&world.page(0, "keys/zero"));
    browser.click("[data-place='0']");
    browser.sees("1,048,576 bytes of zero");
    browser.go(&world.page(0, "watch/hostile%2F"));
    browser.fill("#from", "1");
    browser.press("Watch");
    browser.sees("4 changes");
    check_accessibility(&browser, "watch");
    browser.go(&world.page(0, "locks"));
    browser.sees("<b>worker-1</b>");
    browser.sees("worker-2");
    check_accessibility(&browser, "locks");
    browser.go(&world.page(0, "leases"));
    browser.sees("2 leases");
    browser.run(
        "const row = document.querySelector('.list .row'); \
         window.lists = () => performance.getEntriesByType('resource').filter(each => each.name.includes('leases')).length; \
         window.before = { row, drawn: row.innerHTML, lists: lists() };",
    );
    browser.wait(
        "the leases are read and drawn anew",
        "lists() > before.lists + 1 && document.querySelector('.list .row').innerHTML !== before.drawn",
    );
    let stays = browser.run("return before.row.isConnected");
    assert_eq!(
        stays, true,
        "a row is another element each time it is drawn"
    );
    browser.click("[data-place='1']");
    browser.sees("locks/nightly/");
    check_accessibility(&browser, "leases");
    browser.press("Revoke");
    browser.click("dialog[open] button.bad");
    browser.sees("Revoked.");
    browser.sees("1 leases");
    browser.go(&world.page(0, "nowhere"));
    browser.sees("There is no view \"nowhere\"");
    browser.go(&world.page(0, "keys/gone%2F"));
    browser.sees("No key has this prefix now.");
    world.put("gone/back", "1", "0");
    browser.sees("back");
    assert_eq!(browser.run("return window.bad ?? null"), Value::Null);
    assert!(
        browser.complaints().is_empty(),
        "{:?}",
        browser.complaints()
    );
    let origin = format!("http://{}/", world.ports[0]);
    let requests = browser.requests();
    assert!(requests.len() > 20, "{requests:?}");
    let foreign = requests
        .iter()
        .find(|url| url.starts_with("http") && !url.starts_with(&origin));
    assert_eq!(foreign, None);
    assert_eq!(wire("x"), "eA==");
}
