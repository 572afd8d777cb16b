//! The beginning of all requests of one context: system prompt and tools. It never changes, so providers find it in their caches.

use std::sync::Arc;

use crate::ports::ToolSpec;
use crate::tools::Tool;

/// The system prompt and the tools of the requests of a context.
pub(super) struct RequestPrefix {
    pub system_prompt: Arc<str>,
    /// The descriptions of the tools.
    pub tool_specs: Arc<[ToolSpec]>,
    /// The tools, in the same order.
    tools: Vec<Arc<dyn Tool>>,
    /// The size of all this, in bytes.
    pub bytes: u64,
}

impl RequestPrefix {
    /// Creates a prefix. `tool_specs` describes `tools`, in the same order.
    pub fn new(system_prompt: String, tools: Vec<Arc<dyn Tool>>, tool_specs: Arc<[ToolSpec]>) -> Self {
        let tool_bytes =
            |tool: &ToolSpec| tool.name.len() + tool.description.len() + tool.input_schema.to_string().len();
        let bytes = system_prompt.len() + tool_specs.iter().map(tool_bytes).sum::<usize>();
        Self { system_prompt: system_prompt.into(), tool_specs, tools, bytes: bytes as u64 }
    }

    /// Creates a prefix with the tools whose names `is_chosen` accepts.
    pub fn with_tools(&self, system_prompt: String, is_chosen: impl Fn(&str) -> bool) -> Self {
        let chosen: Vec<usize> =
            (0..self.tools.len()).filter(|index| is_chosen(&self.tool_specs[*index].name)).collect();
        let tools = chosen.iter().map(|index| Arc::clone(&self.tools[*index])).collect();
        let tool_specs = chosen.iter().map(|index| self.tool_specs[*index].clone()).collect();
        Self::new(system_prompt, tools, tool_specs)
    }

    /// Returns the tool with this name, or the error for the model if there is none.
    pub fn tool(&self, name: &str) -> Result<&Arc<dyn Tool>, String> {
        let index = self.tool_specs.iter().position(|spec| spec.name == name);
        index.and_then(|index| self.tools.get(index)).ok_or_else(|| {
            let names: Vec<&str> = self.tool_specs.iter().map(|spec| spec.name.as_str()).collect();
            format!("There is no tool `{name}`. There are: {}.", names.join(", "))
        })
    }

    /// Returns true if it has this tool.
    pub fn has_tool(&self, name: &str) -> bool {
        self.tool_specs.iter().any(|spec| spec.name == name)
    }
}
