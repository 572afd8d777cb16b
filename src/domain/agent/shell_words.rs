//! The words of a command line, as a shell separates them.
//!
//! The reading covers quotes, operators, redirections, substitutions and here-documents. It runs nothing, so it cannot know the value of an
//! expansion such as `$X`. Shells differ in rare forms, and some forms are not closed: then [`ShellText::is_unclear`] is true.

/// The deepest nesting of substitutions. A text with deeper ones is unclear.
const DEPTH_MAX: usize = 50;
/// Separates the words that one word may become. No command contains it.
const BREAK: char = '\0';
/// Words that begin a coprocess or a function.
const STREAM_WORDS: [&str; 2] = ["coproc", "function"];
const REDIRECTIONS: [&str; 10] = ["<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">"];

/// A word of a command line.
#[derive(Debug, Default)]
pub struct Word {
    /// The text without quotes. Expansions stay as they are written.
    pub written: String,
    /// The text if each expansion gives nothing, or its default value. It has a [`BREAK`] where the shell may separate words.
    expanded: String,
    /// Some of the text is in quotes, or after a backslash.
    pub is_quoted: bool,
    open_braces: usize,
}

impl Word {
    /// The words that this word becomes if each expansion in it gives nothing, or its default value.
    pub fn expanded(&self) -> Vec<&str> {
        if self.is_quoted && !self.expanded.contains(BREAK) {
            return vec![&self.expanded];
        }
        self.expanded.split(BREAK).filter(|piece| !piece.is_empty()).collect()
    }

    fn push(&mut self, letter: char) {
        self.written.push(letter);
        self.expanded.push(letter);
    }

    fn push_text(&mut self, text: &str) {
        self.written.push_str(text);
        self.expanded.push_str(text);
    }

    /// Adds a brace or comma that is not quoted. It may separate words, such as in `{git,push}`.
    fn push_brace(&mut self, letter: char) {
        match letter {
            '{' => self.open_braces += 1,
            '}' => self.open_braces = self.open_braces.saturating_sub(1),
            _ if self.open_braces == 0 => return self.push(letter),
            _ => {}
        }
        self.written.push(letter);
        self.expanded.push(BREAK);
    }

    /// Returns true if the word names the file descriptor of the redirection after it, such as `2` and `{name}`.
    fn is_descriptor(&self) -> bool {
        let name = self.written.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        let is_name = |name: &str| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        !self.is_quoted && (self.written.bytes().all(|byte| byte.is_ascii_digit()) || name.is_some_and(is_name))
    }
}

/// The words between two operators, without redirections.
#[derive(Debug, Default)]
pub struct Part {
    /// The words. There is at least one.
    pub words: Vec<Word>,
    /// The part may read from a stream: a pipe, a process substitution, a coprocess or a function begins before the end of the part.
    pub is_after_stream: bool,
}

/// A text that a shell would run.
#[derive(Debug, Default)]
pub struct ShellText {
    /// The parts between operators, also those in substitutions.
    pub parts: Vec<Part>,
    /// The commands in backquotes.
    pub backquoted: Vec<String>,
    /// Here-documents and here-strings.
    pub documents: Vec<String>,
    /// The text has more than words, quotes and expansions.
    pub has_operator: bool,
    /// A redirection writes to a file other than `/dev/null`.
    pub writes_file: bool,
    /// The text has a form in which shells differ, or one that is not closed. Words can be missing.
    pub is_unclear: bool,
    has_stream: bool,
}

impl ShellText {
    /// Reads a text.
    pub fn read(text: &str) -> Self {
        let mut shell_text = Self::default();
        Reader { text, at: 0, depth: 0, found: &mut shell_text }.read_script(false);
        shell_text
    }

    fn end_part(&mut self, words: &mut Vec<Word>) {
        if !words.is_empty() {
            self.parts.push(Part { words: std::mem::take(words), is_after_stream: self.has_stream });
        }
    }
}

/// Returns what `printf` and `echo -e` write for a text: its escape sequences become characters.
pub fn unescaped(text: &str) -> String {
    let mut reader = Reader { text, at: 0, depth: 0, found: &mut ShellText::default() };
    let mut word = Word::default();
    while let Some(letter) = reader.next() {
        match letter {
            // It ends the output.
            '\\' if reader.skip("c") => word.push('\n'),
            '\\' => reader.read_escape(&mut word),
            _ => word.push(letter),
        }
    }
    word.written
}

/// A here-document whose text begins after the line.
struct Document {
    end: String,
    is_quoted: bool,
    is_indented: bool,
}

/// A position in a text that is read.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    found: &'a mut ShellText,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.at += letter.len_utf8();
        Some(letter)
    }

    /// Moves after `text`, if the rest begins with it.
    fn skip(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    /// Skips a line break after a backslash. The shell joins the two lines, also inside an operator.
    fn skip_joined_line(&mut self) -> bool {
        let is_special = |letter: char| "<>&|($'\"{".contains(letter);
        let is_after_special = self.text[..self.at].ends_with(is_special);
        let is_joined = self.skip("\\\n");
        // The two signs can be one operator, which is not read as one.
        self.found.is_unclear |= is_joined && is_after_special && self.rest().starts_with(is_special);
        is_joined
    }

    fn skip_blanks(&mut self) {
        while self.skip(" ") || self.skip("\t") || self.skip_joined_line() {}
    }

    /// Reads commands until the end, or until the closing parenthesis of a substitution.
    fn read_script(&mut self, is_substitution: bool) {
        let (mut words, mut documents, mut open_count) = (Vec::new(), Vec::new(), 0_usize);
        loop {
            self.skip_blanks();
            let Some(letter) = self.peek() else {
                self.found.is_unclear |= is_substitution;
                break;
            };
            match letter {
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                '<' | '>' => self.read_redirection(&mut words, &mut documents),
                '&' if self.rest().starts_with("&>") => self.at += 1,
                ';' | '&' | '|' | '(' | ')' | '\n' => {
                    self.read_operator(&mut words);
                    match letter {
                        '(' => open_count += 1,
                        ')' if is_substitution && open_count == 0 => break,
                        ')' => open_count = open_count.saturating_sub(1),
                        '\n' => documents.drain(..).for_each(|document| self.read_document(&document)),
                        _ => {}
                    }
                }
                _ => {
                    let word = self.read_word();
                    // The parentheses of its patterns are not closed.
                    self.found.is_unclear |= is_substitution && word.written == "case";
                    self.found.has_stream |= STREAM_WORDS.contains(&word.written.as_str());
                    if !(word.is_descriptor() && self.rest().starts_with(['<', '>'])) {
                        words.push(word);
                    }
                }
            }
        }
        self.found.end_part(&mut words);
        self.found.is_unclear |= !documents.is_empty();
    }

    /// Reads an operator, which ends the part before it.
    fn read_operator(&mut self, words: &mut Vec<Word>) {
        self.found.end_part(words);
        self.found.has_operator = true;
        // In arithmetic, `<<` and `#` have other meanings.
        self.found.is_unclear |= self.rest().starts_with("((");
        if !(self.skip("||") || self.skip("&&")) {
            self.found.has_stream |= self.peek() == Some('|') || self.rest().starts_with("()");
            self.next();
        }
    }

    /// Reads the script of a substitution, after its opening parenthesis.
    fn read_substitution(&mut self) {
        if self.depth == DEPTH_MAX {
            self.found.is_unclear = true;
            return;
        }
        self.depth += 1;
        self.read_script(true);
        self.depth -= 1;
    }

    /// Moves after the start of a process substitution.
    fn skip_process_start(&mut self) -> bool {
        let is_start = self.skip("<(") || self.skip(">(");
        self.found.has_stream |= is_start;
        is_start
    }

    fn read_redirection(&mut self, words: &mut Vec<Word>, documents: &mut Vec<Document>) {
        if self.skip_process_start() {
            self.read_substitution();
            words.push(Word { written: "<()".to_owned(), ..Word::default() });
            return;
        }
        self.found.has_operator = true;
        let operator = REDIRECTIONS.into_iter().find(|operator| self.skip(operator)).unwrap_or_default();
        self.skip_blanks();
        if self.skip_process_start() {
            return self.read_substitution();
        }
        let target = self.read_word();
        let is_descriptor =
            operator == ">&" && target.written.trim_end_matches('-').bytes().all(|byte| byte.is_ascii_digit());
        self.found.writes_file |= operator.contains('>') && !is_descriptor && target.written != "/dev/null";
        match operator {
            "<<<" => self.found.documents.push(target.written),
            "<<" | "<<-" => {
                // In the index of an array, `<<` has another meaning.
                let is_index = words.last().is_some_and(|word| word.written.contains('['));
                self.found.is_unclear |= is_index || target.written.contains(['$', '`']);
                let is_indented = operator == "<<-";
                documents.push(Document { end: target.written, is_quoted: target.is_quoted, is_indented });
            }
            _ => {}
        }
    }

    /// Reads the lines of a here-document, after the line that begins it.
    fn read_document(&mut self, document: &Document) {
        let start = self.at;
        let mut end = self.text.len();
        self.at = self.text.len();
        let mut line_start = start;
        let mut is_closed = false;
        for line in self.text[start..].split_inclusive('\n') {
            let text = line.strip_suffix('\n').unwrap_or(line);
            let text = if document.is_indented { text.trim_start_matches('\t') } else { text };
            if text == document.end {
                (end, is_closed) = (line_start, true);
                self.at = line_start + line.len();
                break;
            }
            // The shell joins this line and the next one.
            self.found.is_unclear |= !document.is_quoted && text.ends_with('\\');
            line_start += line.len();
        }
        self.found.is_unclear |= !is_closed;
        let text = &self.text[start..end];
        self.found.documents.push(text.to_owned());
        if !document.is_quoted {
            let mut reader = Reader { text, at: 0, depth: self.depth, found: &mut *self.found };
            reader.read_double_quoted(&mut Word::default(), false);
        }
    }

    /// Reads a word until a blank or operator that is not quoted.
    fn read_word(&mut self) -> Word {
        let mut word = Word::default();
        while let Some(letter) = self.peek() {
            match letter {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                '\\' => {
                    if !self.skip_joined_line() {
                        self.at += 1;
                        word.is_quoted = true;
                        word.push(self.next().unwrap_or('\\'));
                    }
                }
                '\'' => {
                    self.at += 1;
                    word.is_quoted = true;
                    self.read_single_quoted(&mut word);
                }
                '"' => {
                    self.at += 1;
                    word.is_quoted = true;
                    self.read_double_quoted(&mut word, true);
                }
                '$' => self.read_expansion(&mut word, false),
                '`' => self.read_backquotes(&mut word),
                '{' | '}' | ',' => {
                    self.at += 1;
                    word.push_brace(letter);
                }
                _ => {
                    self.at += letter.len_utf8();
                    word.push(letter);
                }
            }
        }
        word
    }

    fn read_single_quoted(&mut self, word: &mut Word) {
        let (text, is_closed) = self.rest().split_once('\'').map_or((self.rest(), false), |(text, _)| (text, true));
        word.push_text(text);
        self.at += text.len() + usize::from(is_closed);
        self.found.is_unclear |= !is_closed;
    }

    /// Reads until the closing quote, or, in a here-document, until the end.
    fn read_double_quoted(&mut self, word: &mut Word, has_quote: bool) {
        while let Some(letter) = self.peek() {
            match letter {
                '"' if has_quote => {
                    self.at += 1;
                    return;
                }
                '\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some('\n') => self.at += 1,
                        Some('$' | '`' | '"' | '\\') => self.next().into_iter().for_each(|letter| word.push(letter)),
                        _ => word.push('\\'),
                    }
                }
                '$' => self.read_expansion(word, true),
                '`' => self.read_backquotes(word),
                _ => {
                    self.at += letter.len_utf8();
                    word.push(letter);
                }
            }
        }
        self.found.is_unclear |= has_quote;
    }

    /// Reads from a dollar sign to the end of the expansion.
    fn read_expansion(&mut self, word: &mut Word, is_quoted: bool) {
        let start = self.at;
        self.at += 1;
        if !is_quoted && self.skip("'") {
            word.is_quoted = true;
            return self.read_escaped(word);
        }
        if !is_quoted && self.peek() == Some('"') {
            return;
        }
        if self.rest().starts_with("((") || self.rest().starts_with('[') {
            self.found.is_unclear = true;
        }
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if self.skip("(") {
            self.read_substitution();
        } else if self.skip("{") {
            self.read_braces(word, is_quoted);
        } else if self.peek().is_some_and(|letter| "0123456789@*#?$!-".contains(letter)) {
            self.at += 1;
        } else if self.peek().is_some_and(is_name) {
            let name = self.rest().split(|letter| !is_name(letter)).next().unwrap_or_default();
            self.at += name.len();
            if name == "IFS" && !is_quoted {
                word.expanded.push(BREAK);
            }
        } else {
            word.expanded.push('$');
        }
        word.written.push_str(&self.text[start..self.at]);
    }

    /// Reads until the brace that closes an expansion such as `${X:-default}`.
    fn read_braces(&mut self, word: &mut Word, is_quoted: bool) {
        let start = self.at;
        loop {
            match self.peek() {
                None => {
                    self.found.is_unclear = true;
                    break;
                }
                Some('}') => break,
                Some('$') if self.depth < DEPTH_MAX => {
                    self.depth += 1;
                    self.read_expansion(&mut Word::default(), true);
                    self.depth -= 1;
                }
                Some(letter) => {
                    self.found.is_unclear |= "$'\"\\`".contains(letter);
                    self.at += letter.len_utf8();
                }
            }
        }
        let content = &self.text[start..self.at];
        self.skip("}");
        let value = content.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
        let value = value.strip_prefix(':').unwrap_or(value).strip_prefix(['-', '=', '+']).unwrap_or_default();
        for letter in value.chars() {
            word.expanded.push(if letter.is_whitespace() && !is_quoted { BREAK } else { letter });
        }
        if content.starts_with("IFS") && !is_quoted {
            word.expanded.push(BREAK);
        }
    }

    /// Reads a command in backquotes.
    fn read_backquotes(&mut self, word: &mut Word) {
        let start = self.at;
        self.at += 1;
        let mut command = String::new();
        let is_closed = loop {
            match self.next() {
                None => break false,
                Some('`') => break true,
                Some('\\') => match self.next() {
                    Some(letter @ ('`' | '\\' | '$')) => command.push(letter),
                    letter => command.extend(std::iter::once('\\').chain(letter)),
                },
                Some(letter) => command.push(letter),
            }
        };
        let is_odd = |quote: char| command.matches(quote).count() % 2 == 1;
        self.found.is_unclear |= !is_closed || is_odd('\'') || is_odd('"');
        word.written.push_str(&self.text[start..self.at]);
        self.found.backquoted.push(command);
    }

    /// Reads a text such as `$'\x67it'`, after the first quote.
    fn read_escaped(&mut self, word: &mut Word) {
        loop {
            match self.next() {
                None => {
                    self.found.is_unclear = true;
                    return;
                }
                Some('\'') => return,
                Some('\\') => self.read_escape(word),
                Some(letter) => word.push(letter),
            }
        }
    }

    fn read_escape(&mut self, word: &mut Word) {
        // A shell without this form of quotes ends the text at the quote after the backslash.
        self.found.is_unclear |= self.peek() == Some('\'');
        let (radix, digits_max) = match self.peek() {
            Some('x') => (16, 2),
            Some('u') => (16, 4),
            Some('U') => (16, 8),
            Some('0'..='7') => (8, 3),
            _ => {
                match self.next() {
                    Some('n') => word.push('\n'),
                    Some('t') => word.push('\t'),
                    Some(letter) => word.push(letter),
                    None => {}
                }
                return;
            }
        };
        self.at += usize::from(radix == 16);
        let digits: String = self.rest().chars().take(digits_max).take_while(|letter| letter.is_digit(radix)).collect();
        self.at += digits.len();
        let letter = u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32);
        word.push(letter.unwrap_or(char::REPLACEMENT_CHARACTER));
    }
}
