//! The person's checkout: brought along when a merge moves its branch. What the person changed is never touched; what a checkout
//! that was broken off left half done is told from it by its contents.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use super::{Inner, checked_out};
use crate::ports::RepositoryError;

/// What may lie about in a checkout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Whole files alone: nothing was killed since.
    Whole,
    /// Also files that were being written when the process before was killed or the disk was full.
    Torn,
}

impl Inner {
    /// Brings the person's checkout to where its branch is, if it is behind because of a merge. Where a merge changed what the person
    /// changed, all stays as it is, and the text says so.
    pub(super) fn follow(&self, left: Left) -> Result<Option<String>, RepositoryError> {
        let checkout = self.checkout_ref();
        let Some(old) = self.ref_at(&checkout)? else { return Ok(None) };
        if checked_out(&self.main)?.as_deref() != Some(&self.into) {
            // Whoever checks it out again has it as it is then.
            self.main.git(["update-ref", "-d", &checkout]).ok()?;
            return Ok(None);
        }
        let new = self.commit_of(&self.target_ref())?;
        self.bring(&old, &new, left)
    }

    /// Brings the person's checkout, which stands on the branch, from one commit to the other, and says then that it is there.
    pub(super) fn bring(&self, old: &str, new: &str, left: Left) -> Result<Option<String>, RepositoryError> {
        // It exits 1 where files differ, which is the next question.
        self.main.git(["update-index", "-q", "--refresh"]).run()?;
        let go = || self.main.git(["read-tree", "-m", "-u", old, new]).run();
        let mut said = go()?;
        if said.code != 0 && self.put_back(old, new, left)? {
            said = go()?;
        }
        if said.code != 0 && !self.main.git(["diff-index", "--cached", "--quiet", new]).yes_or_no()? {
            let old = &old[..old.len().min(12)];
            let into = &self.into;
            let why = said.err.trim().replace('\n', " ");
            return Ok(Some(format!(
                "{into} was moved by a merge, and the workspace's files are still those of {old} ({why}): a commit made there now would undo the merge. Copy the file that git names elsewhere and take it out of the way (git checkout {old} -- FILE; remove it if git does not know it): the next merge or launch brings the workspace along"
            )));
        }
        self.main.git(["update-ref", "-d", &self.checkout_ref()]).ok()?;
        Ok(None)
    }

    /// Puts files back to `old` that hold what a merge since then put there: git writes the files first and its index last, and
    /// was ended in between. Says whether there were any.
    fn put_back(&self, old: &str, new: &str, left: Left) -> Result<bool, RepositoryError> {
        if self.main.git_dir.join("index.lock").exists() {
            // Perhaps a git is at work.
            return Ok(false);
        }
        let staged: HashSet<String> = self
            .main
            .git(["diff-index", "--cached", "--name-only", "--no-renames", "-z", old])
            .ok()?
            .fields()
            .collect();
        let mut written = self.written_between(old, new)?;
        written.retain(|path, _| {
            let is_file = fs::symlink_metadata(self.main.work_tree.join(path)).is_ok_and(|file| file.is_file());
            // Git is told of paths by lines here.
            is_file && !staged.contains(path) && !path.contains('\n')
        });
        let paths: String = written.keys().map(|path| format!("{path}\n")).collect();
        let hashes = self.main.git(["hash-object", "--stdin-paths"]).input(paths).ok()?.line();
        let mut is_any = false;
        for ((path, blobs), hash) in written.iter().zip(hashes.lines()) {
            let is_ours =
                blobs.iter().any(|blob| blob == hash) || (left == Left::Torn && self.is_begun(path, blobs)?);
            if is_ours && !self.is_at(old, path, hash)? {
                self.restore(old, path)?;
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// What the commits between put into each file they changed.
    fn written_between(&self, old: &str, new: &str) -> Result<BTreeMap<String, Vec<String>>, RepositoryError> {
        let range = format!("{old}..{new}");
        let options = ["log", "--format=", "--raw", "-z", "--no-abbrev", "--no-renames", "-m", "--first-parent"];
        let said = self.main.git(options.iter().chain(&[range.as_str()])).ok()?;
        let (mut written, mut fields) = (BTreeMap::<String, Vec<String>>::new(), said.fields());
        while let Some(head) = fields.next() {
            // `:<mode> <mode> <blob> <blob> <kind>`, and the path.
            let Some(head) = head.trim_start().strip_prefix(':').map(str::to_owned) else { continue };
            if let (Some(blob), Some(path)) = (head.split(' ').nth(3), fields.next()) {
                written.entry(path).or_default().push(blob.to_owned());
            }
        }
        Ok(written)
    }

    /// Whether the file holds the beginning of one of these blobs and no more: nothing that would be lost with it.
    fn is_begun(&self, path: &str, blobs: &[String]) -> Result<bool, RepositoryError> {
        let Ok(there) = fs::read(self.main.work_tree.join(path)) else { return Ok(false) };
        for blob in blobs {
            let said = self.main.git(["cat-file", "blob", blob]).run()?;
            if said.code == 0 && said.out.starts_with(&there) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the file has this content in the commit.
    fn is_at(&self, commit: &str, path: &str, hash: &str) -> Result<bool, RepositoryError> {
        let said = self.main.git(["rev-parse", "--verify", "--quiet", &format!("{commit}:{path}")]).run()?;
        Ok(said.code == 0 && said.line() == hash)
    }

    /// Puts the file back to what the index has of it, which is what the commit has.
    fn restore(&self, commit: &str, path: &str) -> Result<(), RepositoryError> {
        let is_there =
            self.main.git(["rev-parse", "--verify", "--quiet", &format!("{commit}:{path}")]).run()?.code == 0;
        if is_there {
            return self.main.git(["checkout-index", "--force", "--index", "--", path]).ok().map(drop);
        }
        let file = self.main.work_tree.join(path);
        fs::remove_file(&file).map_err(|error| RepositoryError::Failed {
            action: format!("remove {}", file.display()),
            reason: error.to_string(),
        })
    }
}
