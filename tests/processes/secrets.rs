//! Keys in the environment: a command that prints everything it finds must not carry them into any file.

use super::support::{Answer, Place, files_below};

#[test]
fn the_values_of_keys_appear_in_no_file() {
    let plan = "## Print all\n```sh\nenv | tee env.txt\nprintenv ANTHROPIC_API_KEY; printenv MY_TOKEN; printenv DB_PASSWORD\nset\n```\n## Verify\nverify: env\n```sh\ntrue\n```\n";
    let place = Place::with_team(1, plan);
    let secrets = [
        ("ANTHROPIC_API_KEY", "sk-secret-xyz"),
        ("OPENAI_API_KEY", "sk-other-secret"),
        ("MY_TOKEN", "abc-token-value"),
        ("DB_PASSWORD", "hunter2-value"),
        ("GITHUB_TOKEN", "ghp-value"),
        ("AWS_SECRET_ACCESS_KEY", "aws-value"),
    ];
    let mut run = place.brigade(&["run"]);
    run.envs(secrets).env("MY_PLAIN", "plain-value");
    let answer = Answer::of(run);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(place.read("env.txt").contains("MY_PLAIN=plain-value"), "other variables are handed on");
    let files = files_below(place.path());
    assert!(files.len() > 8, "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes) + file.to_string_lossy();
        for (name, value) in secrets {
            assert!(!text.contains(value), "the value of {name} is in {}", file.display());
        }
    }
    for (name, value) in secrets {
        assert!(!(answer.out.clone() + &answer.err).contains(value), "the value of {name} was printed");
    }
}
