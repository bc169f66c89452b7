//! Which file knows which, and that no circle is among those.
//!
//! A path counts for the file that defines what it names: one that goes through a `pub use` is
//! followed to where that leads. A re-export is no knowledge of the file that makes it.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{Token, product, product_tokens};

/// Modules, and rooms of the server, whose files still know each other in circles. What has no circle
/// any more leaves this list.
const WITH_CIRCLES: &[&str] = &[];
/// Rooms of the server, and floors that they stand on each other.
const ROOMS_MAX: usize = 16;
const FLOORS_MAX: usize = 8;
/// Rooms of the server that still know one above them. What does not any more leaves this list.
const UPWARDS: &[(&str, &str)] = &[];

type Module = Vec<String>;

/// The files of a crate by their modules.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, File>,
}

#[derive(Default)]
struct File {
    /// What a name stands for here.
    imports: BTreeMap<String, Module>,
    /// Where everything of these comes in.
    globs: Vec<Module>,
    /// All paths that the file names for itself.
    paths: Vec<Module>,
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Module(Module),
    ItemOf(Module),
    Elsewhere,
}

impl Crate {
    fn of(sources: &[(Module, String)]) -> Self {
        let files = sources.iter().map(|(module, text)| {
            let mut file = File::default();
            file.read(&product_tokens(text));
            (module.clone(), file)
        });
        Self {
            files: files.collect(),
        }
    }

    /// What `path` stands for in `module`.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Found {
        let (mut here, mut rest) = match path.first().map(String::as_str) {
            Some("crate") => (Vec::new(), &path[1..]),
            Some("self") => (module.clone(), &path[1..]),
            Some("super") => (parent(module), &path[1..]),
            Some(name) => {
                let is_known = self.has_child(module, name)
                    || self
                        .files
                        .get(module)
                        .is_some_and(|file| file.imports.contains_key(name));
                if !is_known {
                    return Found::Elsewhere;
                }
                (module.clone(), path)
            }
            None => return Found::Elsewhere,
        };
        while let Some(name) = rest.first() {
            if name == "super" {
                (here, rest) = (parent(&here), &rest[1..]);
                continue;
            }
            let file = self.files.get(&here);
            let import = file.and_then(|file| file.imports.get(name));
            let is_last = rest.len() == 1;
            if self.has_child(&here, name) && !(is_last && import.is_some()) {
                here.push(name.clone());
                rest = &rest[1..];
                continue;
            }
            // Twenty re-exports of re-exports are a circle of names, and none of files.
            let target = import.filter(|_| depth < 20);
            let Some(target) = target else {
                let globs = file.map(|file| file.globs.as_slice()).unwrap_or_default();
                // What a glob brings is looked for where it comes from, if it is not defined here.
                return match globs
                    .first()
                    .map(|glob| self.resolve(&here, glob, depth + 1))
                {
                    Some(Found::Module(from)) if from != *module && here != *module => {
                        Found::ItemOf(from)
                    }
                    _ => Found::ItemOf(here),
                };
            };
            match self.resolve(&here, target, depth + 1) {
                Found::Module(next) => (here, rest) = (next, &rest[1..]),
                found => return found,
            }
        }
        Found::Module(here)
    }

    fn has_child(&self, module: &Module, name: &str) -> bool {
        let mut child = module.clone();
        child.push(name.to_owned());
        self.files.contains_key(&child)
    }

    /// The files that each file knows, by their places in `files`.
    fn edges(&self) -> Vec<BTreeSet<usize>> {
        let places: BTreeMap<&Module, usize> = self.files.keys().zip(0..).collect();
        let known_by = |(module, file): (&Module, &File)| {
            // A module that is named alone says nothing: what is used of it is a path, too.
            let items = file
                .paths
                .iter()
                .filter_map(|path| match self.resolve(module, path, 0) {
                    Found::ItemOf(of) if of != *module => places.get(&of).copied(),
                    _ => None,
                });
            items.collect()
        };
        self.files.iter().map(known_by).collect()
    }

    /// The files that know themselves through others, in groups.
    fn circles(&self) -> Vec<Vec<String>> {
        let edges = self.edges();
        let reach: Vec<BTreeSet<usize>> = (0..edges.len()).map(|at| reached(&edges, at)).collect();
        let names: Vec<String> = self.files.keys().map(|module| module.join("::")).collect();
        let mut circles = BTreeSet::new();
        for (at, far) in reach.iter().enumerate() {
            let circle = far.iter().filter(|other| reach[**other].contains(&at));
            let circle: Vec<String> = circle.map(|other| names[*other].clone()).collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    /// The rooms of the server, and the rooms that each of them knows.
    fn rooms(&self) -> BTreeMap<String, BTreeSet<String>> {
        let modules: Vec<&Module> = self.files.keys().collect();
        let room_of = |module: &Module| match &module[..] {
            [server, room, ..] if server == "server" => Some(room.clone()),
            _ => None,
        };
        let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (at, known) in self.edges().iter().enumerate() {
            let Some(room) = room_of(modules[at]) else {
                continue;
            };
            let others = known.iter().filter_map(|other| room_of(modules[*other]));
            let others: BTreeSet<String> = others.filter(|other| *other != room).collect();
            rooms.entry(room).or_default().extend(others);
        }
        rooms
    }
}

fn parent(module: &Module) -> Module {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// Everything that `from` knows, directly or through others.
fn reached(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<usize> = edges[from].iter().copied().collect();
    while let Some(at) = next.pop() {
        if reached.insert(at) {
            next.extend(&edges[at]);
        }
    }
    reached
}

impl File {
    fn read(&mut self, tokens: &[Token]) {
        let words: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
        let (mut reexports, mut used) = (Vec::new(), BTreeSet::new());
        let mut at = 0;
        while at < words.len() {
            if words[at] == "use" {
                let end = (at..words.len()).find(|at| words[*at] == ";");
                let end = end.unwrap_or(words.len());
                let is_public = at > 0 && matches!(words[at - 1], "pub" | ")");
                let mut leaves = Vec::new();
                use_tree(&words[at + 1..end], &mut Vec::new(), &mut leaves);
                for (name, path) in leaves {
                    match (name.as_str(), is_public) {
                        ("*", _) => self.globs.push(path.clone()),
                        (_, true) => reexports.push((name.clone(), path.clone())),
                        (_, false) => {}
                    }
                    if !is_public {
                        self.paths.push(path.clone());
                    }
                    self.imports.insert(name, path);
                }
                at = end;
            } else if words[at] == "mod" {
                at += 2;
            } else if is_name(words[at]) && words.get(at + 1) == Some(&"::") {
                let mut path = vec![words[at].to_owned()];
                let mut next = at + 1;
                while words.get(next) == Some(&"::")
                    && words.get(next + 1).is_some_and(|w| is_name(w))
                {
                    path.push(words[next + 1].to_owned());
                    next += 2;
                }
                used.insert(words[at]);
                // The rest of a path whose beginning is no name belongs to that.
                if at == 0 || words[at - 1] != "::" {
                    self.paths.push(path);
                }
                at = next;
            } else {
                if at == 0 || words[at - 1] != "." {
                    used.insert(words[at]);
                }
                at += 1;
            }
        }
        // What is re-exported may be used here as well.
        let of_use = reexports
            .into_iter()
            .filter(|(name, _)| used.contains(name.as_str()));
        self.paths.extend(of_use.map(|(_, path)| path));
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The leaves of what follows `use`: the name that each binds, and its path.
fn use_tree(words: &[&str], before: &mut Module, leaves: &mut Vec<(String, Module)>) {
    let length = before.len();
    let mut at = 0;
    while at < words.len() {
        match words[at] {
            "{" => {
                let mut depth = 0;
                let mut start = at + 1;
                for inner in at..words.len() {
                    match words[inner] {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    let ends = depth == 0 || (depth == 1 && words[inner] == ",");
                    if ends && start < inner {
                        use_tree(&words[start..inner], before, leaves);
                    }
                    if ends {
                        start = inner + 1;
                    }
                }
                before.truncate(length);
                return;
            }
            "::" => {}
            "*" => {
                leaves.push(("*".to_owned(), before.clone()));
                before.truncate(length);
                return;
            }
            "as" => {
                leaves.push((words[at + 1].to_owned(), before.clone()));
                before.truncate(length);
                return;
            }
            "self" if at > 0 || !before.is_empty() => {}
            word => before.push(word.to_owned()),
        }
        at += 1;
    }
    if let Some(name) = before.last() {
        leaves.push((name.clone(), before.clone()));
    }
    before.truncate(length);
}

/// The library as it is.
fn library() -> Crate {
    let files = product()
        .into_iter()
        .filter(|source| !source.module.is_empty());
    let sources: Vec<(Module, String)> = files.map(|source| (source.module, source.text)).collect();
    Crate::of(&sources)
}

#[test]
fn no_file_knows_itself_through_others() {
    let circles = library().circles();
    let is_within = |circle: &[String], module: &str| {
        let inside = |name: &String| format!("{name}::").starts_with(&format!("{module}::"));
        circle.iter().all(inside)
    };
    let mut wrong = Vec::new();
    for circle in &circles {
        if !WITH_CIRCLES.iter().any(|module| is_within(circle, module)) {
            wrong.push(format!("a circle: {}", circle.join(", ")));
        }
    }
    for module in WITH_CIRCLES {
        if !circles.iter().any(|circle| is_within(circle, module)) {
            wrong.push(format!(
                "`{module}` has no circle any more: take it from the list"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn planted(sources: &[(&str, &str)]) -> Crate {
    let sources: Vec<(Module, String)> = sources
        .iter()
        .map(|(module, text)| {
            let module = module.split("::").map(str::to_owned).collect();
            (module, (*text).to_owned())
        })
        .collect();
    Crate::of(&sources)
}

#[test]
fn a_planted_circle_is_seen() {
    let direct = planted(&[
        ("a", "use crate::b::B;\npub struct A;\n"),
        ("b", "pub struct B;\nfn f() -> crate::a::A { todo!() }\n"),
        ("c", "use crate::{a::A, b::{self, B}};\n"),
    ]);
    assert_eq!(direct.circles(), [["a", "b"]]);

    // `m` hands on what its children define, and that is no knowledge of `m`.
    let through = [
        (
            "m",
            "mod x;\nmod y;\npub use self::x::X;\npub(crate) use self::y::{Y as Z, make};\n",
        ),
        ("m::x", "use super::Z;\npub struct X;\n"),
        ("m::y", "pub struct Y;\npub fn make() {}\n"),
        ("n", "use crate::m;\nfn f() { m::make(); }\n"),
    ];
    assert_eq!(planted(&through).circles(), [[""; 0]; 0]);
    let mut closed = through;
    closed[2].1 = "use crate::n::N;\npub struct Y;\npub fn make() {}\n";
    assert_eq!(planted(&closed).circles(), [["m::y", "n"]]);

    let of_tests = planted(&[
        ("a", "use crate::b::B;\n"),
        ("b", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
    ]);
    assert_eq!(of_tests.circles(), [[""; 0]; 0]);
}

/// The floors that rooms stand on each other; none if that is a circle.
fn floors(rooms: &BTreeMap<String, BTreeSet<String>>) -> Option<usize> {
    let (mut left, mut floors) = (rooms.clone(), 0);
    while !left.is_empty() {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, known| known.iter().any(|room| names.contains(room)));
        if left.len() == names.len() {
            return None;
        }
        floors += 1;
    }
    Some(floors)
}

#[test]
fn the_rooms_of_the_server_are_few_and_stand_on_each_other() {
    let mut rooms = library().rooms();
    assert!(rooms.len() <= ROOMS_MAX, "{:?}", rooms.keys());
    let mut gone = Vec::new();
    for (room, above) in UPWARDS {
        let known = rooms.get_mut(*room);
        if !known.is_some_and(|known| known.remove(*above)) {
            gone.push(format!(
                "`{room}` does not know `{above}` any more: take it from the list"
            ));
        }
    }
    assert!(gone.is_empty(), "\n{}", gone.join("\n"));
    let floors = floors(&rooms).unwrap_or_else(|| panic!("a circle of rooms: {rooms:#?}"));
    assert!(floors <= FLOORS_MAX, "{floors} floors: {rooms:#?}");
}

#[test]
fn floors_are_counted_and_circles_of_rooms_are_seen() {
    let of = |modules: &[(&str, &str)]| floors(&planted(modules).rooms());
    let tower = [
        ("server", "mod a;\n"),
        ("server::a", "pub struct A;\n"),
        ("server::b", "use crate::server::a::A;\npub struct B;\n"),
        (
            "server::c",
            "use crate::server::{a::A, b::B};\npub struct C;\n",
        ),
        ("kv", "pub struct K;\n"),
    ];
    assert_eq!(of(&tower), Some(3));
    let mut circle = tower;
    circle[1].1 = "use crate::server::c::C;\nuse crate::kv::K;\npub struct A;\n";
    assert_eq!(of(&circle), None);
}
