//! The content of the simulated disk: current and durable names and bytes, and the result of a power cut.

use std::io;
use std::path::{Path, PathBuf};

use super::*;

impl Disk {
    pub(super) fn disk_after_cut(&self, random: &mut FaultRandom) -> Self {
        let mut after = Self { inodes: self.inodes.clone(), garbage_at: GARBAGE_FILES_MAX, ..Self::default() };
        after.tree = self.durable.clone();
        let mut lost: Vec<&NameChange> = Vec::new();
        for change in &self.pending {
            if random.keeps_change() && !lost.iter().any(|earlier| change.builds_on(earlier)) {
                after.apply(change);
                after.carry(change);
            } else {
                lost.push(change);
            }
        }
        after.durable = after.tree.clone();
        let mut ids: Vec<u64> = after.inodes.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(inode) = after.inodes.get_mut(&id) {
                inode.bytes = inode.bytes_after_cut(random);
                inode.make_durable();
            }
        }
        after.remove_unreferenced();
        after
    }

    /// Applies a change to the names that processes see.
    pub(super) fn apply(&mut self, change: &NameChange) {
        for (name, node) in &change.names {
            set(&mut self.tree, name, *node);
        }
    }

    pub(super) fn change_names(&mut self, names: Vec<(PathBuf, Option<Node>)>, carried_inode: Option<u64>) {
        let carried_inode = carried_inode.and_then(|id| {
            let inode = self.inodes.get(&id)?;
            Some((id, inode.version, Arc::clone(&inode.bytes)))
        });
        let change = NameChange { names, carried_bytes: carried_inode };
        self.apply(&change);
        self.pending.push(change);
        if self.inodes.len() > self.garbage_at {
            self.remove_unreferenced();
            self.garbage_at = self.inodes.len() + GARBAGE_FILES_MAX;
        }
    }

    pub(super) fn make_durable(&mut self, change: &NameChange) {
        for (name, node) in &change.names {
            set(&mut self.durable, name, *node);
        }
        self.carry(change);
    }

    pub(super) fn carry(&mut self, change: &NameChange) {
        let Some((id, version, bytes)) = &change.carried_bytes else {
            return;
        };
        if let Some(inode) = self.inodes.get_mut(id).filter(|inode| inode.durable_version < *version) {
            inode.is_append_only &= inode.bytes.starts_with(bytes);
            inode.durable = Arc::clone(bytes);
            inode.durable_version = *version;
        }
    }

    pub(super) fn sync_folder(&mut self, folder: &Path) {
        let pending = std::mem::take(&mut self.pending);
        let mut is_synced: Vec<bool> = pending.iter().map(|change| change.concerns(folder)).collect();
        for later in (0..pending.len()).rev() {
            if is_synced[later] {
                for earlier in 0..later {
                    is_synced[earlier] |= pending[later].builds_on(&pending[earlier]);
                }
            }
        }
        for (change, is_synced) in pending.into_iter().zip(is_synced) {
            if is_synced {
                self.make_durable(&change);
            } else {
                self.pending.push(change);
            }
        }
    }

    pub(super) fn remove_unreferenced(&mut self) {
        let named = |node: &Node| if let Node::File(id) = node { Some(*id) } else { None };
        let mut used: HashSet<u64> = self.tree.values().chain(self.durable.values()).filter_map(named).collect();
        used.extend(self.pending.iter().flat_map(|change| &change.names).filter_map(|(_, node)| named(node.as_ref()?)));
        self.inodes.retain(|id, _| used.contains(id));
    }

    pub(super) fn node(&self, path: &Path) -> io::Result<Node> {
        self.tree.get(path.as_os_str()).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<u64> {
        match self.node(path)? {
            Node::File(id) => Ok(id),
            Node::Folder => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn inode(&mut self, id: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn check_parent(&self, path: &Path) -> io::Result<()> {
        match path.parent().map(|parent| self.node(parent)) {
            Some(Ok(Node::Folder)) => Ok(()),
            Some(Ok(Node::File(_))) => Err(io::ErrorKind::NotADirectory.into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The file at `path`, created if it is missing.
    pub(super) fn open(&mut self, path: &Path) -> io::Result<u64> {
        match self.file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        self.check_parent(path)?;
        let id = self.next_inode;
        self.next_inode += 1;
        let modified_ns = self.tick();
        self.inodes.insert(id, Inode { is_append_only: true, modified_ns, ..Inode::default() });
        self.change_names(vec![(path.to_owned(), Some(Node::File(id)))], None);
        self.watches.notify(path, None);
        Ok(id)
    }

    /// Appends bytes to a file, as many as fit.
    pub(super) fn extend(&mut self, id: u64, bytes: &[u8], bytes_max: u64) -> io::Result<()> {
        let free = if bytes_max == u64::MAX { u64::MAX } else { bytes_max.saturating_sub(self.used_bytes()) };
        let fitting = bytes.len().min(usize::try_from(free).unwrap_or(usize::MAX));
        let modified_ns = self.tick();
        let inode = self.inode(id)?;
        Arc::make_mut(&mut inode.bytes).extend_from_slice(&bytes[..fitting]);
        inode.version += 1;
        inode.modified_ns = modified_ns;
        if fitting < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn used_bytes(&self) -> u64 {
        let size = |node: &Node| match node {
            Node::File(id) => self.inodes.get(id).map_or(0, |inode| inode.bytes.len() as u64),
            Node::Folder => 0,
        };
        self.tree.values().map(size).sum()
    }

    pub(super) fn tick(&mut self) -> i128 {
        self.clock_ns += TICK_NS;
        match self.now_ns {
            // Writes at the same time still get different stamps.
            Some(now_ns) => now_ns + (self.clock_ns - CLOCK_START_NS) / TICK_NS % SAME_TIME_RANGE_NS,
            None => self.clock_ns,
        }
    }
}

fn set(tree: &mut Tree, name: &Path, node: Option<Node>) {
    match node {
        Some(node) => {
            tree.insert(name.as_os_str().to_owned(), node);
        }
        None => {
            tree.remove(name.as_os_str());
        }
    }
}
