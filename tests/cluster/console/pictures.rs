//! The pictures of the documentation, and the page at all its widths.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::console::browser::Browser;
use crate::console::views::check_accessibility;
use crate::console::world::World;

const VIEWS: [(&str, &str); 5] = [
    ("cluster", "cluster"),
    ("keys", "keys/app%2F"),
    ("leases", "leases"),
    ("locks", "locks"),
    ("watch", "watch/app%2F"),
];

/// Where the pictures go: to the documentation if that is wanted, else where nobody looks.
fn folder() -> PathBuf {
    match std::env::var_os("UPDATE_PICTURES") {
        Some(_) => Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/console"),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("console"),
    }
}

/// Something to look at.
fn furnish(world: &World) {
    for (key, values) in [
        (
            "app/config/limits",
            &["{\"rate\": 100}", "{\"rate\": 250, \"burst\": 20}"][..],
        ),
        ("app/config/feature/new-checkout", &["off", "on"]),
        ("app/config/feature/dark-mode", &["on"]),
        ("app/nodes/web-1", &["10.0.0.11:8080"]),
        ("app/nodes/web-2", &["10.0.0.12:8080"]),
    ] {
        for value in values {
            world.put(key, value, "0");
        }
    }
    for (name, seconds) in [("worker-1", 1_800), ("worker-2", 3_600), ("worker-3", 900)] {
        let lease = world.grant(seconds);
        let id: i64 = lease.parse().unwrap();
        world.put(format!("locks/nightly-report/{id:x}"), name, &lease);
        if name == "worker-2" {
            world.put(
                format!("elections/scheduler/{id:x}"),
                "worker-2 at 10.0.0.12",
                &lease,
            );
        }
    }
}

#[test]
fn every_view_fits_every_width_in_light_and_dark() {
    let Some(browser) = Browser::open("the console's looks") else {
        return;
    };
    let world = World::start(3, &[]);
    furnish(&world);
    let folder = folder();
    std::fs::create_dir_all(&folder).unwrap();
    let is_for_documentation = std::env::var_os("UPDATE_PICTURES").is_some();
    browser.go(&world.page(world.leader, "cluster"));
    browser.wait(
        "the lease",
        "document.getElementById('lease-state').textContent === 'valid'",
    );
    if is_for_documentation {
        // Plots of an idle cluster show nothing.
        for number in 0..240 {
            world.put(
                "app/nodes/web-1",
                format!("10.0.0.11:8080 {}", number % 7),
                "0",
            );
            let _ = world.value("app/config/limits");
            std::thread::sleep(Duration::from_millis(5 + (number % 40)));
        }
    }
    for (name, view) in VIEWS {
        for scheme in ["light", "dark"] {
            for (width, height) in [(360, 740), (1180, 760), (1600, 900)] {
                browser.look(width, height, scheme);
                browser.go(&world.page(world.leader, view));
                settle(&browser, name);
                let fits = browser.run("return document.documentElement.scrollWidth <= innerWidth");
                assert_eq!(fits, true, "{view} at {width}");
                let kind = format!("{name}-{scheme}");
                let file = match (is_for_documentation, width) {
                    (true, 1180) => format!("{kind}.png"),
                    (true, _) => continue,
                    _ => format!("{kind}-{width}.png"),
                };
                browser.picture(&folder.join(file));
            }
            check_accessibility(&browser, name);
        }
    }
}

fn settle(browser: &Browser, name: &str) {
    match name {
        "cluster" => browser.sees("committed"),
        "keys" => {
            browser.wait(
                "folders",
                "document.querySelectorAll('.list .row').length >= 2",
            );
            browser.keys(".list", "\u{e014}");
            browser.sees("limits");
            browser.run("[...document.querySelectorAll('.list .row')].find(row => row.textContent.includes('limits')).click()");
            browser.sees("\"burst\"");
            browser.click(".steps li button");
            browser.sees("compared with");
        }
        "leases" => {
            browser.sees("3 leases");
            browser.click("[data-place='2']");
            browser.sees("locks/nightly-report/");
        }
        "locks" => browser.sees("fencing token"),
        _ => {
            browser.fill("#from", "1");
            browser.press("Watch");
            browser.sees("changes");
            browser.sees("app/config/limits");
        }
    }
}
