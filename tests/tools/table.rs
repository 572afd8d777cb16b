//! The TOOLS table is complete, and every tool accepts its schema and nothing else.

use std::collections::BTreeSet;

use brigade::domain::agent::text_tool_call::{ToolSignature, contains_tool_call};
use brigade::domain::team::team_spec::{Isolation, MemberSpec, ModelSpec, Prompts, TeamSpec};
use brigade::tools::ToolError;
use brigade::tools::table::{Audience, TOOLS, ToolEntry, ToolUser, all_tools, tools_for};
use serde_json::{Value, json};

use super::harness::harness;

#[test]
fn tool_names_are_unique_for_each_member() {
    for is_lead in [false, true] {
        let names: Vec<String> = all_tools(is_lead).iter().map(|tool| tool.spec().name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }
}

/// A value that matches a schema's property.
fn example_of(property: &Value) -> Value {
    match property["type"].as_str().unwrap() {
        "string" => property["enum"].get(0).cloned().unwrap_or(json!("x")),
        "integer" => json!(1),
        "boolean" => json!(true),
        "array" => json!([example_of(&property["items"])]),
        other => panic!("a property of type {other}"),
    }
}

/// A value of another type.
fn wrong_for(property: &Value) -> Value {
    match property["type"].as_str().unwrap() {
        "string" => json!({ "not": "text" }),
        "array" => json!({ "not": "a list" }),
        _ => json!("not that"),
    }
}

#[test]
fn tool_schemas_are_valid_and_described() {
    for entry in TOOLS.iter() {
        let spec = entry.tool.spec();
        let schema = &spec.input_schema;
        assert_eq!(schema["type"], "object", "{}", entry.name);
        let properties = schema["properties"].as_object().unwrap();
        for name in required(schema) {
            assert!(properties.contains_key(name), "{}: {name}", entry.name);
        }
        for property in properties.values() {
            example_of(property);
        }
        let bytes = spec.description.len();
        assert!((20..400).contains(&bytes), "{}: a description of {bytes} bytes, not 20 to 400", entry.name);
    }
}

fn required(schema: &Value) -> Vec<&str> {
    schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect()
}

/// The names of the tools of the lead, or of the first teammate.
fn names_for(team: &TeamSpec, is_lead: bool) -> BTreeSet<String> {
    let member = if is_lead { &team.lead } else { &team.members[0] };
    let tools = tools_for(&ToolUser { team, member });
    tools.iter().map(|tool| tool.spec().name).collect()
}

#[test]
fn member_has_only_useful_tools() {
    let model = || ModelSpec::new("test", "m");
    let team = |members: usize| {
        let member = |number: usize| MemberSpec::new(&format!("m{number}"), "coder", model()).unwrap();
        TeamSpec { ask: true, members: (0..members).map(member).collect(), ..TeamSpec::new("crew", model()).unwrap() }
    };
    let missing = |is_lead: bool, team: &TeamSpec| {
        let all: BTreeSet<String> = all_tools(is_lead).iter().map(|tool| tool.spec().name).collect();
        let missing: Vec<String> = all.difference(&names_for(team, is_lead)).cloned().collect();
        missing.join(" ")
    };
    let plain = team(2);
    assert_eq!(missing(false, &plain), "read_inbox review");
    let mut unled = TeamSpec { lead: MemberSpec::new("lead", "lead", ModelSpec::runbook()).unwrap(), ..team(2) };
    assert_eq!(missing(false, &unled), "plan_approval read_inbox review shutdown_response");
    unled.members[0].plan_first = true;
    assert_eq!(missing(false, &unled), "read_inbox review shutdown_response");
    assert_eq!(missing(true, &plain), "claim_task delete_file idle read_inbox review todo");
    assert_eq!(missing(true, &team(1)), "broadcast claim_task delete_file idle read_inbox review todo");
    assert_eq!(missing(true, &team(0)), "broadcast idle read_inbox review");
    let silent = TeamSpec { ask: false, ..team(2) };
    assert_eq!(missing(false, &silent), "ask read_inbox review");
    let mut full = team(2);
    full.review = Some("coder".to_owned());
    assert_eq!(
        (missing(false, &full), missing(true, &full)),
        ("read_inbox".to_owned(), "claim_task delete_file idle read_inbox todo".to_owned())
    );
    full.review = Some("tester".to_owned());
    assert_eq!(
        (missing(false, &full).as_str(), missing(true, &full).as_str()),
        ("read_inbox review", "claim_task delete_file idle read_inbox todo")
    );
    full.review = Some("human".to_owned());
    assert_eq!(missing(true, &full), "claim_task delete_file idle read_inbox review todo");
    let isolated = TeamSpec { isolation: Isolation::Worktree, ..team(0) };
    assert_eq!(
        missing(true, &isolated),
        "broadcast claim_task delete_file edit_file idle read_inbox review write_file"
    );
}

/// Names and parameters are a contract. Providers cache these bytes.
#[test]
fn tool_specs_keep_their_bytes() {
    let line = |entry: &ToolEntry| {
        let spec = entry.tool.spec();
        format!("{} ({:?}): {}\n{}\n", spec.name, entry.audience, spec.description, spec.input_schema)
    };
    let specs: Vec<String> = TOOLS.iter().map(line).collect();
    insta::assert_snapshot!(specs.join("\n"));
}

/// Small models copy the form of examples, so no prompt and no description shows a call as text.
#[test]
fn prompts_and_descriptions_show_no_call_as_text() {
    let specs: Vec<_> = [false, true].into_iter().flat_map(all_tools).map(|tool| tool.spec()).collect();
    let tools: Vec<ToolSignature> = specs
        .iter()
        .map(|spec| {
            let arguments = spec.input_schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            ToolSignature { name: &spec.name, arguments }
        })
        .collect();
    assert!(contains_tool_call("bash {\"command\": \"ls\"}", &tools), "such a call is recognized by its form");
    for spec in &specs {
        let properties = spec.input_schema["properties"].as_object().unwrap().values();
        for text in properties.filter_map(|property| property["description"].as_str()).chain([&*spec.description]) {
            assert!(!text.contains("{\"") && !contains_tool_call(text, &tools), "{}: {text}", spec.name);
        }
    }
    let Prompts { lead, teammate, external, compact, cleanup } = Prompts::default();
    for part in [&lead, &teammate, &external, &compact, &cleanup].into_iter().flat_map(|text| text.split("->")) {
        assert!(!contains_tool_call(part, &tools), "{part}");
    }
}

#[tokio::test]
async fn tools_accept_their_schema_and_name_bad_arguments() {
    let harness = harness().await;
    for entry in TOOLS.iter() {
        let member = if entry.audience == Audience::Lead { &harness.lead } else { &harness.alice };
        let schema = entry.tool.spec().input_schema;
        let properties = schema["properties"].as_object().unwrap();
        let full: Value = properties
            .iter()
            .map(|(name, property)| (name.clone(), example_of(property)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        // The call may fail for any reason except for its arguments.
        if let Err(ToolError::Recoverable(text)) = member.call(entry.name, full.clone()).await {
            assert!(!text.contains("argument") || text.contains("`force`"), "{}: {text}", entry.name);
        }
        member.holding.send_replace(None);
        let mut unknown = full.clone();
        unknown["surprise"] = json!(1);
        assert!(
            member.expect_refusal(entry.name, unknown).await.contains("unknown argument `surprise`"),
            "{}",
            entry.name
        );
        for (name, property) in properties {
            let mut wrong = full.clone();
            wrong[name] = wrong_for(property);
            // Any string is valid text, and a list may be written as one.
            let text = member.expect_refusal(entry.name, wrong).await;
            assert!(text.contains(&format!("argument `{name}` must be")), "{} {name}: {text}", entry.name);
        }
        for name in required(&schema) {
            let mut missing = full.clone();
            missing.as_object_mut().unwrap().remove(name);
            let text = member.expect_refusal(entry.name, missing).await;
            assert!(text.contains(&format!("argument `{name}` is missing")), "{text}");
        }
    }
}

#[test]
fn tool_call_summary_is_one_line() {
    let bash = &all_tools(false)[0];
    assert_eq!(bash.about(&json!({ "command": "cd a\nmake" })), "cd a …");
    assert_eq!(bash.about(&json!({ "command": "x".repeat(500) })).chars().count(), 200);
    for entry in TOOLS.iter() {
        entry.tool.about(&Value::Null);
        entry.tool.about(&json!({ "path": 3 }));
    }
}
