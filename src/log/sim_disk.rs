//! A disk for tests and for the simulator: it forgets, tears, flips, fills up and lies.
//!
//! It is deterministic: the same seed and the same calls give the same disk. The library has it in
//! its tests only; the simulator, a test binary of its own, compiles this file as a module of its
//! disk, so it names nothing but what `super` has.
//!
//! Two layers, as in a machine. What is written goes to the *page cache*; what is synced becomes
//! *durable*. A [`SimDisk::kill`] (the process dies) keeps the page cache; a [`SimDisk::crash`]
//! (the power fails) keeps of everything unsynced an arbitrary **subset of 512-byte sectors**, not
//! a prefix, and of the names that were made or removed since the last sync of their folder an
//! arbitrary subset, too. A sector that was written twice may come back as of the first time. A
//! sync that fails leaves its pages *clean but not durable*, as ext4 and XFS do: they can be read
//! until the power fails, and a second sync does not write them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskError, DiskFile};

const SECTOR: usize = 512;

/// A disk in memory. Clones are handles of the same disk.
#[derive(Clone, Debug)]
pub(crate) struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// An open file of a [`SimDisk`]. After a crash it answers nothing but errors.
#[derive(Debug)]
pub(crate) struct SimFile {
    state: Arc<Mutex<State>>,
    name: String,
    inode: u64,
    boot: u64,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call is carried out in part, and every later one fails until the disk is started again.
    Crash,
    /// An I/O error. A write is carried out in part; a sync makes a part durable and forgets that
    /// the rest is not.
    Io,
    /// No space left. Of calls that take no space: an I/O error.
    NoSpace,
    /// A sync (of data or of names) reports success and does nothing. No effect on other calls.
    LostSync,
}

/// How often the disk was asked for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Everything: what [`SimDisk::fail_call`] counts.
    pub(crate) all: u64,
    /// `write_at`
    pub(crate) writes: u64,
    /// `sync_data`
    pub(crate) syncs: u64,
    /// `sync_dir`, `create` and `remove`
    pub(crate) names: u64,
}

#[derive(Clone, Debug)]
struct State {
    random: fastrand::Rng,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    calls: Calls,
    faults: BTreeMap<u64, Fault>,
    lying: bool,
    down: bool,
    boot: u64,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors of `cached` that a sync would write.
    dirty: BTreeSet<usize>,
}

impl SimDisk {
    /// An empty disk.
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            inodes: BTreeMap::new(),
            next_inode: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            calls: Calls::default(),
            faults: BTreeMap::new(),
            lying: false,
            down: false,
            boot: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A copy of the disk as it is, which goes its own way from here with its own seed.
    pub(crate) fn fork(&self, seed: u64) -> Self {
        let mut state = self.lock().clone();
        state.random = fastrand::Rng::with_seed(seed);
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The `call`th call from now (the next is 1) meets `fault`.
    pub(crate) fn fail_call(&self, call: u64, fault: Fault) {
        let mut state = self.lock();
        let at = state.calls.all + call;
        state.faults.insert(at, fault);
    }

    /// From now on (until told otherwise) each sync reports success and does nothing.
    pub(crate) fn lie_about_syncs(&self, lying: bool) {
        self.lock().lying = lying;
    }

    /// How often the disk was asked so far.
    pub(crate) fn calls(&self) -> Calls {
        self.lock().calls
    }

    /// The process dies and comes back: the page cache stays, open files do not.
    pub(crate) fn kill(&self) {
        self.lock().restart();
    }

    /// The power fails and comes back: of what was not synced, a random subset stays.
    pub(crate) fn crash(&self) {
        let mut random = self.lock().random.fork();
        self.crash_keeping(|_, _| random.bool());
    }

    /// The power fails and comes back, and `keep(name, sector)` says which unsynced sectors made
    /// it. Unsynced names are still left to chance.
    pub(crate) fn crash_keeping(&self, mut keep: impl FnMut(&str, usize) -> bool) {
        let state = &mut *self.lock();
        let names = state.inode_names();
        for (id, inode) in &mut state.inodes {
            let name = names.get(id).map_or("", String::as_str);
            for sector in std::mem::take(&mut inode.dirty) {
                if keep(name, sector) {
                    inode.make_durable(sector);
                }
            }
            // The length is metadata, and may have been written without what it covers.
            if inode.durable.len() < inode.cached.len() && state.random.bool() {
                inode.durable.resize(inode.cached.len(), 0);
            }
            inode.cached.clone_from(&inode.durable);
        }
        for name in state.unsynced_names() {
            if state.random.bool() {
                let now = state.names.get(&name).copied();
                state.make_name_durable(&name, now);
            }
        }
        state.names = state.durable_names.clone();
        let named: BTreeSet<u64> = state.names.values().copied().collect();
        state.inodes.retain(|id, _| named.contains(id));
        state.restart();
    }

    /// The sectors (file and number) that a crash would leave to chance.
    pub(crate) fn unsynced(&self) -> Vec<(String, usize)> {
        let state = self.lock();
        let names = state.inode_names();
        let mut all = Vec::new();
        for (id, inode) in &state.inodes {
            if let Some(name) = names.get(id) {
                all.extend(inode.dirty.iter().map(|sector| (name.clone(), *sector)));
            }
        }
        all
    }

    /// All files, with their folders.
    pub(crate) fn file_names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// A file's bytes, as a program would read them; empty if there is none.
    pub(crate) fn contents(&self, name: &str) -> Vec<u8> {
        let state = self.lock();
        let inode = state.names.get(name).and_then(|id| state.inodes.get(id));
        inode.map_or_else(Vec::new, |inode| inode.cached.clone())
    }

    /// Changes bytes behind everyone's back, in the cache and on the disk: rot. Makes the file
    /// longer if need be, but not a new one.
    pub(crate) fn rot(&self, name: &str, at: usize, bytes: &[u8]) {
        let state = &mut *self.lock();
        let id = state.names.get(name).copied();
        if let Some(inode) = id.and_then(|id| state.inodes.get_mut(&id)) {
            for layer in [&mut inode.cached, &mut inode.durable] {
                let end = at + bytes.len();
                if layer.len() < end {
                    layer.resize(end, 0);
                }
                layer[at..end].copy_from_slice(bytes);
            }
        }
    }

    /// Flips one bit of a file, in the cache and on the disk.
    pub(crate) fn flip(&self, name: &str, bit: usize) {
        let state = &mut *self.lock();
        let id = state.names.get(name).copied();
        if let Some(inode) = id.and_then(|id| state.inodes.get_mut(&id)) {
            for layer in [&mut inode.cached, &mut inode.durable] {
                if let Some(byte) = layer.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Removes a file for good, behind everyone's back.
    pub(crate) fn lose_file(&self, name: &str) {
        let mut state = self.lock();
        state.names.remove(name);
        state.durable_names.remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn open_inode(&self, name: &str, inode: u64, boot: u64) -> SimFile {
        SimFile {
            state: Arc::clone(&self.state),
            name: name.to_owned(),
            inode,
            boot,
        }
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn create(&mut self, name: &str) -> Result<SimFile, DiskError> {
        let state = &mut *self.lock();
        state.calls.names += 1;
        let fault = state.begin("create", name)?;
        let refused = fault.map(|fault| fault.error("create", name));
        let happens = fault.is_none() || (fault == Some(Fault::Crash) && state.random.bool());
        if happens {
            if state.names.contains_key(name) {
                return Err(io_error("create", name, io::ErrorKind::AlreadyExists));
            }
            let inode = state.next_inode;
            state.next_inode += 1;
            state.inodes.insert(inode, Inode::default());
            state.names.insert(name.to_owned(), inode);
        }
        match (refused, state.names.get(name)) {
            (None, Some(inode)) => Ok(self.open_inode(name, *inode, state.boot)),
            (refused, _) => {
                Err(refused.unwrap_or_else(|| io_error("create", name, io::ErrorKind::Other)))
            }
        }
    }

    fn open(&mut self, name: &str) -> Result<SimFile, DiskError> {
        let state = &mut *self.lock();
        if let Some(fault) = state.begin("open", name)? {
            return Err(fault.error("open", name));
        }
        match state.names.get(name) {
            Some(inode) => Ok(self.open_inode(name, *inode, state.boot)),
            None => Err(DiskError::NotFound {
                operation: "open",
                name: name.to_owned(),
            }),
        }
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, DiskError> {
        let state = &mut *self.lock();
        if let Some(fault) = state.begin("list", folder)? {
            return Err(fault.error("list", folder));
        }
        let in_folder = state.names.keys().filter(|name| folder_of(name) == folder);
        Ok(in_folder
            .map(|name| name.rsplit('/').next().unwrap_or(name).to_owned())
            .collect())
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        let state = &mut *self.lock();
        state.calls.names += 1;
        let fault = state.begin("remove", name)?;
        if fault.is_none() || (fault == Some(Fault::Crash) && state.random.bool()) {
            state.names.remove(name);
        }
        fault.map_or(Ok(()), |fault| Err(fault.error("remove", name)))
    }

    fn sync_dir(&mut self, folder: &str) -> Result<(), DiskError> {
        let state = &mut *self.lock();
        state.calls.names += 1;
        let fault = state.begin("sync the folder", folder)?;
        if fault == Some(Fault::LostSync) {
            return Ok(());
        }
        for name in state.unsynced_names() {
            if folder_of(&name) == folder && (fault.is_none() || state.random.bool()) {
                let now = state.names.get(&name).copied();
                state.make_name_durable(&name, now);
            }
        }
        fault.map_or(Ok(()), |fault| Err(fault.error("sync the folder", folder)))
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DiskError> {
        let state = &mut *lock(&self.state);
        if let Some(fault) = self.begin(state, "read")? {
            return Err(fault.error("read", &self.name));
        }
        let inode = self.inode(state, "read")?;
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = at.saturating_add(buffer.len());
        match inode.cached.get(at..end) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(io_error("read", &self.name, io::ErrorKind::UnexpectedEof)),
        }
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        let state = &mut *lock(&self.state);
        state.calls.writes += 1;
        let fault = self.begin(state, "write")?;
        let mut random = state.random.fork();
        let inode = self.inode(state, "write")?;
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = at.saturating_add(bytes.len());
        inode.cached.reserve(end.saturating_sub(inode.cached.len()));
        for (i, part) in bytes.chunks(SECTOR).enumerate() {
            if fault.is_none() || random.bool() {
                inode.write(at + i * SECTOR, part, &mut random);
            }
        }
        fault.map_or(Ok(()), |fault| Err(fault.error("write", &self.name)))
    }

    fn sync_data(&mut self) -> Result<(), DiskError> {
        let state = &mut *lock(&self.state);
        state.calls.syncs += 1;
        let fault = self.begin(state, "sync")?;
        let mut random = state.random.fork();
        let inode = self.inode(state, "sync")?;
        match fault {
            None => {
                let length = inode.cached.len();
                inode.durable.resize(length, 0);
                for sector in std::mem::take(&mut inode.dirty) {
                    inode.make_durable(sector);
                }
                Ok(())
            }
            Some(Fault::LostSync) => Ok(()),
            Some(Fault::Crash) => {
                let dirty: Vec<usize> = inode.dirty.iter().copied().collect();
                for sector in dirty {
                    if random.bool() {
                        inode.make_durable(sector);
                        inode.dirty.remove(&sector);
                    }
                }
                Err(Fault::Crash.error("sync", &self.name))
            }
            Some(fault) => {
                for sector in std::mem::take(&mut inode.dirty) {
                    if random.bool() {
                        inode.make_durable(sector);
                    }
                }
                Err(fault.error("sync", &self.name))
            }
        }
    }

    fn length(&self) -> Result<u64, DiskError> {
        let state = &mut *lock(&self.state);
        if let Some(fault) = self.begin(state, "look at")? {
            return Err(fault.error("look at", &self.name));
        }
        Ok(self.inode(state, "look at")?.cached.len() as u64)
    }
}

impl SimFile {
    fn begin(
        &self,
        state: &mut State,
        operation: &'static str,
    ) -> Result<Option<Fault>, DiskError> {
        if self.boot != state.boot {
            return Err(io_error(operation, &self.name, io::ErrorKind::NotConnected));
        }
        state.begin(operation, &self.name)
    }

    fn inode<'a>(
        &self,
        state: &'a mut State,
        operation: &'static str,
    ) -> Result<&'a mut Inode, DiskError> {
        let inode = state.inodes.get_mut(&self.inode);
        inode.ok_or_else(|| io_error(operation, &self.name, io::ErrorKind::NotConnected))
    }
}

impl State {
    /// Counts a call, and says what is to befall it. A fault that does not apply is left out.
    fn begin(&mut self, operation: &'static str, name: &str) -> Result<Option<Fault>, DiskError> {
        if self.down {
            return Err(Fault::Crash.error(operation, name));
        }
        self.calls.all += 1;
        let is_sync = operation.starts_with("sync");
        let fault = match self.faults.remove(&self.calls.all) {
            Some(Fault::LostSync) if !is_sync => None,
            None if self.lying && is_sync => Some(Fault::LostSync),
            fault => fault,
        };
        self.down = fault == Some(Fault::Crash);
        Ok(fault)
    }

    fn restart(&mut self) {
        self.boot += 1;
        self.down = false;
        self.faults.clear();
    }

    fn inode_names(&self) -> BTreeMap<u64, String> {
        let names = self.durable_names.iter().chain(&self.names);
        names.map(|(name, id)| (*id, name.clone())).collect()
    }

    /// The names that were made or removed since their folder was last synced.
    fn unsynced_names(&self) -> BTreeSet<String> {
        let differs = |name: &&String| self.names.get(*name) != self.durable_names.get(*name);
        let all = self.names.keys().chain(self.durable_names.keys());
        all.filter(differs).cloned().collect()
    }

    fn make_name_durable(&mut self, name: &str, inode: Option<u64>) {
        match inode {
            Some(inode) => self.durable_names.insert(name.to_owned(), inode),
            None => self.durable_names.remove(name),
        };
    }
}

impl Inode {
    fn write(&mut self, at: usize, bytes: &[u8], random: &mut fastrand::Rng) {
        let end = at + bytes.len();
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        for sector in at / SECTOR..end.div_ceil(SECTOR) {
            // The kernel may have written the earlier content back in the meantime.
            if !self.dirty.insert(sector) && random.bool() {
                self.make_durable(sector);
            }
        }
        self.cached[at..end].copy_from_slice(bytes);
    }

    fn make_durable(&mut self, sector: usize) {
        let from = sector * SECTOR;
        let to = self.cached.len().min(from + SECTOR);
        if self.durable.len() < to {
            self.durable.resize(to, 0);
        }
        if from < to {
            self.durable[from..to].copy_from_slice(&self.cached[from..to]);
        }
    }
}

impl Fault {
    fn error(self, operation: &'static str, name: &str) -> DiskError {
        let space = matches!(operation, "write" | "create" | "sync" | "sync the folder");
        let text = match self {
            Self::Crash => "the disk is gone",
            Self::NoSpace if space => {
                return DiskError::NoSpace {
                    operation,
                    name: name.to_owned(),
                };
            }
            _ => "input/output error",
        };
        DiskError::Io {
            operation,
            name: name.to_owned(),
            kind: io::ErrorKind::Other,
            text: text.to_owned(),
        }
    }
}

fn io_error(operation: &'static str, name: &str, kind: io::ErrorKind) -> DiskError {
    DiskError::Io {
        operation,
        name: name.to_owned(),
        kind,
        text: kind.to_string(),
    }
}

fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_with(bytes: &[u8]) -> (SimDisk, SimFile) {
        let mut disk = SimDisk::new(1);
        let mut file = disk.create("f/a").unwrap();
        file.write_at(&vec![1; bytes.len()], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir("f").unwrap();
        file.write_at(bytes, 0).unwrap();
        (disk, file)
    }

    #[test]
    fn a_crash_keeps_any_subset_of_unsynced_sectors() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let (disk, _file) = disk_with(&[2; 3 * SECTOR]);
            let disk = disk.fork(seed);
            disk.crash();
            let contents = disk.contents("f/a");
            seen.insert([contents[0], contents[SECTOR], contents[2 * SECTOR]]);
        }
        assert_eq!(seen.len(), 8, "every subset of three sectors: {seen:?}");
    }

    #[test]
    fn what_was_synced_stays_and_what_was_not_named_durably_may_go() {
        let (mut disk, mut file) = disk_with(&[2; SECTOR]);
        file.sync_data().unwrap();
        disk.crash();
        assert_eq!(disk.contents("f/a"), vec![2; SECTOR]);
        assert!(file.write_at(&[1], 0).is_err(), "files do not survive");
        let mut lost = 0;
        for seed in 0..32 {
            let mut fork = disk.fork(seed);
            let mut new = fork.create("f/b").unwrap();
            new.write_at(&[1; SECTOR], 0).unwrap();
            new.sync_data().unwrap();
            fork.crash();
            lost += u32::from(fork.file_names().len() == 1);
        }
        assert!((1..32).contains(&lost), "{lost} of 32 names lost");
        assert!(disk.open("f/b").is_err());
    }

    #[test]
    fn a_failed_sync_leaves_pages_that_no_second_sync_writes() {
        let (disk, _file) = disk_with(&[2; 8 * SECTOR]);
        let mut fork = disk.fork(3);
        let mut file = fork.open("f/a").unwrap();
        fork.fail_call(1, Fault::Io);
        assert!(file.sync_data().is_err());
        assert_eq!(file.sync_data(), Ok(()));
        fork.kill();
        assert_eq!(fork.contents("f/a"), vec![2; 8 * SECTOR], "still readable");
        fork.crash();
        assert_ne!(fork.contents("f/a"), vec![2; 8 * SECTOR], "and not on disk");
    }

    #[test]
    fn a_lost_sync_says_that_all_is_well() {
        let (disk, mut file) = disk_with(&[2; SECTOR]);
        disk.lie_about_syncs(true);
        assert_eq!(file.sync_data(), Ok(()));
        disk.crash_keeping(|_, _| false);
        assert_eq!(disk.contents("f/a"), vec![1; SECTOR]);
    }

    #[test]
    fn after_a_crash_in_a_call_nothing_works_until_the_restart() {
        let (mut disk, mut file) = disk_with(&[2; SECTOR]);
        disk.fail_call(1, Fault::Crash);
        assert!(file.sync_data().is_err());
        assert!(disk.open("f/a").is_err());
        disk.crash();
        assert!(disk.open("f/a").is_ok());
    }
}
