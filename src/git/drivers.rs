//! The filters and merge drivers that git settings name, and the settings that make git run them in the sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::settings::Setting;
use crate::domain::agent::access::PathRule;
use crate::sandbox::filter::{DriverKind, DriverSandbox};

/// A setting that Brigade replaces to run a driver in the sandbox.
#[derive(Debug)]
pub(super) struct ReplacedSetting {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// The original value.
    pub own: Vec<u8>,
}

/// The filters and merge drivers that settings name, by driver name.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    filters: BTreeMap<Vec<u8>, Filter>,
    merges: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Default)]
struct Filter {
    clean: Vec<u8>,
    smudge: Vec<u8>,
    /// An empty value switches the filter off.
    process: Option<Vec<u8>>,
    is_required: bool,
}

/// The way in which git runs drivers.
pub(super) enum DriverRunner {
    /// As they are: git itself runs in the sandbox.
    InGitsSandbox,
    /// Each in a sandbox. Git LFS alone may write a folder of the repository.
    OwnSandbox { sandbox: DriverSandbox, lfs: PathBuf },
}

impl DriverRunner {
    fn command(&self, kind: DriverKind, name: &[u8], own: &[u8]) -> Vec<u8> {
        match self {
            Self::InGitsSandbox => own.to_vec(),
            Self::OwnSandbox { sandbox, lfs } if name == b"lfs" => {
                let mut sandbox = sandbox.clone();
                sandbox.rules.push(PathRule::writable(lfs));
                sandbox.wrap(kind, own)
            }
            Self::OwnSandbox { sandbox, .. } => sandbox.wrap(kind, own),
        }
    }

    /// The command of a filter that changes nothing.
    fn identity(&self) -> Vec<u8> {
        match self {
            Self::InGitsSandbox => b"cat".to_vec(),
            Self::OwnSandbox { sandbox, .. } => sandbox.identity(),
        }
    }
}

impl Drivers {
    pub(super) fn of(settings: &[&Setting]) -> Self {
        let mut drivers = Self::default();
        for setting in settings {
            let value = || setting.text().to_vec();
            match setting.parts() {
                Some((b"merge", name, b"driver")) => {
                    drivers.merges.insert(name.to_vec(), value());
                }
                Some((b"filter", name, part)) => {
                    let filter = drivers.filters.entry(name.to_vec()).or_default();
                    match part {
                        b"clean" => filter.clean = value(),
                        b"smudge" => filter.smudge = value(),
                        b"process" => filter.process = Some(value()),
                        b"required" => filter.is_required = setting.is_true(),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let is_driver =
            |filter: &Filter| !filter.clean.is_empty() || !filter.smudge.is_empty() || filter.process.is_some();
        drivers.filters.retain(|_, filter| is_driver(filter));
        drivers
    }

    /// The settings that make git run these drivers in the sandbox. All filters are required: otherwise git would continue with unfiltered
    /// contents if one cannot run.
    pub(super) fn replaced(&self, runner: &DriverRunner) -> Vec<ReplacedSetting> {
        let mut replaced = Vec::new();
        for (name, filter) in &self.filters {
            let mut replace = |part: &str, value: Vec<u8>, own: &[u8]| {
                let key = [b"filter.", name.as_slice(), b".", part.as_bytes()].concat();
                replaced.push(ReplacedSetting { key, value, own: own.to_vec() });
            };
            for (part, own) in [("clean", &filter.clean), ("smudge", &filter.smudge)] {
                if !own.is_empty() {
                    replace(part, runner.command(DriverKind::Filter, name, own), own);
                } else if !filter.is_required {
                    replace(part, runner.identity(), b"cat");
                }
            }
            match &filter.process {
                Some(own) if own.is_empty() => continue,
                Some(own) => replace("process", runner.command(DriverKind::Process, name, own), own),
                None => {}
            }
            replace("required", b"true".to_vec(), b"true");
        }
        for (name, own) in &self.merges {
            let key = [b"merge.", name.as_slice(), b".driver"].concat();
            let value = runner.command(DriverKind::Merge, name, own);
            replaced.push(ReplacedSetting { key, value, own: own.clone() });
        }
        replaced
    }
}
