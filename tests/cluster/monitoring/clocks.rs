//! The clocks that one node's leases go by, made to run at another rate, or set back, while it runs.
//!
//! `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW` belong to the machine: nobody may set them, and a library
//! laid before the system's (`libfaketime`) is not asked, since these two are read past libc. But whoever
//! reads them calls a function that the kernel puts into each process, on a page that a debugger may
//! write to as it sets a breakpoint. So does this: the function begins with a jump to another one, in
//! what is left of the page, which asks the kernel and answers something else. Only these two clocks of
//! this one process are concerned.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;

use leasehold::clock::SystemClock;
use leasehold::time::{Clock, Instant};

use crate::harness::{Node, eventually};

/// What is called instead: x86-64, for `clock_gettime(edi: clock, rsi: result)`. The four words that it
/// reads follow it.
const INSTEAD: [u8; 0x68] = [
    0x83, 0xff, 0x07, // cmp edi, CLOCK_BOOTTIME
    0x74, 0x0d, // je boot
    0x83, 0xff, 0x04, // cmp edi, CLOCK_MONOTONIC_RAW
    0x74, 0x11, // je raw
    0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, SYS_clock_gettime
    0x0f, 0x05, // syscall
    0xc3, // ret
    // boot:
    0x48, 0x8b, 0x15, 0x4f, 0x00, 0x00, 0x00, // mov rdx, [boot_since]
    0xeb, 0x07, // jmp instead
    // raw:
    0x48, 0x8b, 0x15, 0x4e, 0x00, 0x00, 0x00, // mov rdx, [raw_since]
    // instead:
    0x52, // push rdx
    0x56, // push rsi
    0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, SYS_clock_gettime
    0x0f, 0x05, // syscall
    0x5e, // pop rsi
    0x5a, // pop rdx
    0x48, 0x69, 0x06, 0x00, 0xca, 0x9a, 0x3b, // imul rax, [rsi], 1000000000
    0x48, 0x03, 0x46, 0x08, // add rax, [rsi + 8]
    0x48, 0x89, 0xc1, // mov rcx, rax
    0x48, 0x29, 0xd1, // sub rcx, rdx
    0x48, 0x0f, 0xaf, 0x0d, 0x32, 0x00, 0x00, 0x00, // imul rcx, [faster]
    0x48, 0xc1, 0xf9, 0x14, // sar rcx, 20
    0x48, 0x01, 0xc8, // add rax, rcx
    0x48, 0x03, 0x05, 0x2c, 0x00, 0x00, 0x00, // add rax, [ahead]
    0x31, 0xd2, // xor edx, edx
    0xb9, 0x00, 0xca, 0x9a, 0x3b, // mov ecx, 1000000000
    0x48, 0xf7, 0xf1, // div rcx
    0x48, 0x89, 0x06, // mov [rsi], rax
    0x48, 0x89, 0x56, 0x08, // mov [rsi + 8], rdx
    0x31, 0xc0, // xor eax, eax
    0xc3, // ret
];
/// The part of a second's rate that the word `faster` counts in: 2^20 of them are one.
const ONE: f64 = 1_048_576.0;
const FUNCTION: &[u8] = b"__vdso_clock_gettime";
/// A section that lists what may be called.
const DYNAMIC_SYMBOLS: u64 = 11;

/// The clocks of a process, in the hands of a test.
pub(crate) struct Clocks {
    memory: File,
    /// Where the words are.
    words: u64,
    /// How much more these clocks show than the same ones here: they may begin elsewhere, in a time namespace.
    offset: Instant,
    since: Instant,
    faster: i64,
    /// Nanoseconds.
    ahead: i64,
}

impl Clocks {
    /// Takes the clocks of a node that runs. They go on as they did. None where that cannot be had.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let process = node.process.as_ref().expect("it runs").id();
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
        let page = maps.lines().find(|line| line.ends_with("[vdso]"))?;
        let (begins, ends) = page.split_once(' ')?.0.split_once('-')?;
        let begins = u64::from_str_radix(begins, 16).ok()?;
        let ends = u64::from_str_radix(ends, 16).ok()?;
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{process}/mem"))
            .ok()?;
        let mut image = vec![0; usize::try_from(ends - begins).ok()?];
        memory.read_exact_at(&mut image, begins).ok()?;
        let function = address_of(&image, FUNCTION)?;
        let used = image.iter().rposition(|byte| *byte != 0)? + 1;
        let place = used.next_multiple_of(16);
        if place + INSTEAD.len() + 32 > image.len() {
            return None;
        }
        let offset = offset_of(process)?;
        let clocks = Self {
            memory,
            words: begins + (place + INSTEAD.len()) as u64,
            offset,
            since: shown(offset),
            faster: 0,
            ahead: 0,
        };
        // The jump is counted from behind itself.
        let distance = i32::try_from(place as u64 - function - 5).ok()?;
        let mut jump = vec![0xe9];
        jump.extend(distance.to_le_bytes());
        let taken = while_it_stands(node, begins..ends, || {
            let written = clocks.memory.write_all_at(&INSTEAD, begins + place as u64);
            written?;
            clocks.tell()?;
            clocks.memory.write_all_at(&jump, begins + function)
        });
        taken.ok()?;
        Some(clocks)
    }

    /// From now on they run so many times as fast as the machine's.
    pub(crate) fn run(&mut self, node: &Node, times: f64) {
        self.change(node, ((times - 1.0) * ONE).round() as i64, 0);
    }

    /// Sets them back by so many nanoseconds. It stands while that is done, and if that takes longer, they do
    /// not go back as it sees them.
    pub(crate) fn set_back(&mut self, node: &Node, nanos: i64) {
        self.change(node, self.faster, nanos);
    }

    fn change(&mut self, node: &Node, faster: i64, back: i64) {
        while_it_stands(node, 0..0, || {
            let now = shown(self.offset);
            let passed = i64::try_from(now.boot - self.since.boot).unwrap();
            self.ahead += ((passed * self.faster) >> 20) - back;
            (self.since, self.faster) = (now, faster);
            self.tell().expect("it could be written before");
        });
    }

    fn tell(&self) -> std::io::Result<()> {
        let since = |nanos: u64| i64::try_from(nanos).unwrap();
        let words = [
            since(self.since.boot),
            since(self.since.raw),
            self.faster,
            self.ahead,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write_all_at(&bytes, self.words)
    }
}

/// What clocks show now that are so far ahead of those here.
fn shown(offset: Instant) -> Instant {
    let now = SystemClock.now();
    Instant {
        boot: now.boot + offset.boot,
        raw: now.raw + offset.raw,
    }
}

/// How far ahead of those here the clocks of a process are. The raw one goes with the monotonic one.
fn offset_of(process: u32) -> Option<Instant> {
    let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/time")).ok();
    if space(&process.to_string()) == space("self") {
        return Some(Instant::ZERO);
    }
    let offsets = fs::read_to_string(format!("/proc/{process}/timens_offsets")).ok()?;
    let nanos = |clock: &str| {
        let line = offsets.lines().find_map(|line| line.strip_prefix(clock))?;
        let (seconds, nanos) = line.trim().split_once(' ')?;
        let seconds: u64 = seconds.parse().ok()?;
        Some(seconds * 1_000_000_000 + nanos.trim().parse::<u64>().ok()?)
    };
    Some(Instant {
        boot: nanos("boottime")?,
        raw: nanos("monotonic")?,
    })
}

/// Does something to a process that stands still meanwhile, no thread of it within `outside`.
fn while_it_stands<T>(node: &Node, outside: std::ops::Range<u64>, what: impl FnOnce() -> T) -> T {
    let process = node.process.as_ref().expect("it runs").id();
    eventually("a moment in which no thread reads a clock", || {
        node.pause();
        let stand = eventually("a process that stands still", || counters(process));
        let is_free = !stand.iter().any(|counter| outside.contains(counter));
        if !is_free {
            node.resume();
        }
        is_free.then_some(())
    });
    let done = what();
    node.resume();
    done
}

/// Where the threads of a process are, if all of them stand still.
fn counters(process: u32) -> Option<Vec<u64>> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let counter = |thread: std::io::Result<fs::DirEntry>| {
        let thread = thread.ok()?.path();
        let stat = fs::read_to_string(thread.join("stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1;
        // `running`, or a system call or -1, and at the end the stack and the counter.
        let call = fs::read_to_string(thread.join("syscall")).ok()?;
        let counter = call.trim().rsplit_once(" 0x")?.1;
        let counter = u64::from_str_radix(counter, 16).ok()?;
        state.starts_with('T').then_some(counter)
    };
    threads.map(counter).collect()
}

/// Where a function of an ELF image begins.
fn address_of(image: &[u8], function: &[u8]) -> Option<u64> {
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let found = image.get(at..at + bytes)?.iter().rev();
        Some(found.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let (sections, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
    let section = |place: u64| sections + place * size;
    let symbols = (0..count)
        .map(section)
        .find(|section| number(section + 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let (first, bytes) = (number(symbols + 0x18, 8)?, number(symbols + 0x20, 8)?);
    let names = number(section(number(symbols + 0x28, 4)?) + 0x18, 8)?;
    let found = (first..first + bytes).step_by(24).find(|symbol| {
        let name = number(*symbol, 4).and_then(|name| usize::try_from(names + name).ok());
        let name = name.and_then(|name| image.get(name..));
        name.is_some_and(|name| name.starts_with(function) && name.get(function.len()) == Some(&0))
    })?;
    number(found + 8, 8)
}
