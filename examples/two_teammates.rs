//! Two teammates execute a plan of commands, without a key or a network: the provider `runbook` runs the `sh` blocks of a task.
//!
//!     cargo run --locked --example two_teammates            # in a new folder
//!     cargo run --locked --example two_teammates -- FOLDER  # in FOLDER

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use brigade::domain::log::event::EventKind;
use brigade::domain::team::team_spec::ModelSpec;
use brigade::domain::team::team_spec::TeamSpec;
use brigade::embed::{self, Team};

const PLAN: &str = r"
## List the trees
verify: test -s trees.txt

```sh
printf 'oak\nash\nelm\n' > trees.txt
```

## Measure the pond
verify: test -s pond.txt

```sh
echo 'The pond is 3 m deep.' > pond.txt
```

## Write the report
after: List the trees, Measure the pond
verify: grep -q pond report.txt

```sh
{ echo $(wc -l < trees.txt) trees.; cat pond.txt; } > report.txt
```
";

fn main() -> Result<(), Box<dyn Error>> {
    embed::run(work())?
}

async fn work() -> Result<(), Box<dyn Error>> {
    let new_folder = || std::env::temp_dir().join(format!("two_teammates-{}", std::process::id()));
    let folder = std::env::args_os().nth(1).map_or_else(new_folder, PathBuf::from);
    fs::create_dir_all(&folder)?;

    let runbook = ModelSpec::runbook();
    let spec = TeamSpec::new("garden", runbook.clone())?
        .with_member("ada", "gardener", runbook.clone())?
        .with_member("ben", "gardener", runbook)?;
    let mut team = Team::new(spec).plan("garden", PLAN)?.launch(&folder).await?;

    // The first receiver gets all events from the start.
    let mut events = team.events();
    let outcome = team.wait().await?;
    while let Ok(event) = events.try_recv() {
        match &event.kind {
            EventKind::TaskClaimed { task, teammate, .. } => println!("{teammate} claims {task}"),
            EventKind::TaskCompleted { task, evidence, .. } => println!("{task} is done: {evidence}"),
            _ => {}
        }
    }
    println!("{}", outcome.summary);
    println!("{}:\n{}", folder.join("report.txt").display(), fs::read_to_string(folder.join("report.txt"))?);
    Ok(())
}
