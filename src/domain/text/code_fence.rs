//! Fences of Markdown code blocks.

/// A row of backticks or tildes that starts or ends a code block.
#[derive(Debug, Clone, Copy)]
pub struct CodeFence {
    character: char,
    length: usize,
}

impl CodeFence {
    /// Returns the fence at the start of a line without indentation, and the text after it.
    pub fn parse(line: &str) -> Option<(Self, &str)> {
        let character = line.chars().next().filter(|first| matches!(first, '`' | '~'))?;
        let rest = line.trim_start_matches(character);
        let length = line.len() - rest.len();
        (length >= 3).then_some((Self { character, length }, rest))
    }

    /// Returns the fence if it can start a block. After backticks, another backtick means a code span within text.
    pub fn opening(line: &str) -> Option<Self> {
        let (fence, rest) = Self::parse(line)?;
        (fence.character == '~' || !rest.contains('`')).then_some(fence)
    }

    /// Returns true if this line, without indentation, ends the block that this fence starts.
    pub fn is_closed_by(self, line: &str) -> bool {
        Self::parse(line).is_some_and(|(fence, rest)| fence.can_close(self) && rest.trim().is_empty())
    }

    /// Returns true if this fence, without text after it, ends a block that `open` starts.
    pub fn can_close(self, open: Self) -> bool {
        self.character == open.character && self.length >= open.length
    }
}
