//! From a place in a JSON text to the field that stands there.

/// Most levels that a path names; deeper ones are left out. No body nests further than this.
const DEPTH_MAX: usize = 32;

/// What stands at a place of a JSON text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Path of the value that ends or begins there, or that came last in the object or list that
    /// ends there; empty for the whole text.
    pub(super) path: String,
    /// Path of the object or list around it, or of the one that has just ended.
    pub(super) container: String,
    /// The value's own text; for an object or a list, the word.
    pub(super) given: String,
    /// Whether the place is the end of an object or list.
    pub(super) at_end: bool,
}

enum Step {
    Key(String),
    Index(usize),
}

/// Finds the value at a line and column as `serde_json` counts them: lines from 1, columns in
/// bytes read.
pub(super) fn locate(text: &[u8], line: usize, column: usize) -> Place {
    let start = match line {
        0 | 1 => 0,
        _ => text
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(line - 2)
            .map_or(text.len(), |(at, _)| at + 1),
    };
    Walk::new(text, start.saturating_add(column).min(text.len())).run()
}

/// Finds the first list that stands where fields of these names hold objects. The text is JSON.
pub(super) fn list_for_object(text: &[u8], objects: &[&str]) -> Option<Place> {
    let mut at = 0;
    let mut key: &[u8] = &[];
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                let mut string = Walk::new(text, text.len());
                string.at = at;
                string.skip_string();
                key = text.get(at + 1..string.at.saturating_sub(1)).unwrap_or_default();
                at = string.at;
                continue;
            }
            b'[' if objects.iter().any(|object| object.as_bytes() == key) => {
                return Some(Walk::new(text, at + 1).run());
            }
            b':' => {}
            byte if byte.is_ascii_whitespace() => {}
            _ => key = &[],
        }
        at += 1;
    }
    None
}

/// The token that was read last. What it does to the stacks is done when the next one comes, so
/// that at the end they still lead to it, and only then are they made into text.
#[derive(Clone, Copy)]
enum Last {
    Nothing,
    Key,
    Value { start: usize, end: usize },
    Open { object: bool },
    Close,
}

struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    end: usize,
    /// Steps from the root to the value under way.
    steps: Vec<Step>,
    /// For each open container: whether it is an object.
    open: Vec<bool>,
    /// Whether the next text is a key.
    key_next: bool,
    last: Last,
}

impl<'a> Walk<'a> {
    fn new(text: &'a [u8], end: usize) -> Self {
        let (steps, open) = (Vec::new(), Vec::new());
        Self { text, at: 0, end, steps, open, key_next: false, last: Last::Nothing }
    }

    fn run(mut self) -> Place {
        // Where the text ends with the end of a container, the value in question is the last one
        // in it: what a type says about a text of its own is placed there.
        let mut inside = None;
        while self.at < self.end {
            let byte = self.text[self.at];
            if byte.is_ascii_whitespace() || byte == b':' {
                self.at += 1;
                continue;
            }
            if matches!(byte, b'}' | b']') && self.at + 1 >= self.end {
                inside = Some(self.place());
            }
            self.settle();
            let start = self.at;
            self.last = match byte {
                b'{' | b'[' => {
                    self.at += 1;
                    Last::Open { object: byte == b'{' }
                }
                b'}' | b']' => {
                    self.at += 1;
                    Last::Close
                }
                b',' => {
                    self.at += 1;
                    self.key_next = self.in_object();
                    if let (false, Some(Step::Index(index))) =
                        (self.key_next, self.steps.last_mut())
                    {
                        *index += 1;
                    }
                    Last::Nothing
                }
                b'"' => {
                    self.skip_string();
                    let token = &self.text[start..self.at];
                    if std::mem::take(&mut self.key_next) {
                        let key = serde_json::from_slice(token)
                            .unwrap_or_else(|_| String::from_utf8_lossy(token).into_owned());
                        self.steps.push(Step::Key(key));
                        Last::Key
                    } else {
                        Last::Value { start, end: self.at }
                    }
                }
                _ => {
                    while self.text.get(self.at).is_some_and(|byte| {
                        !byte.is_ascii_whitespace() && !matches!(byte, b',' | b'}' | b']' | b':')
                    }) {
                        self.at += 1;
                    }
                    Last::Value { start, end: self.at }
                }
            };
        }
        let place = self.place();
        match inside {
            Some(inside) => Place { container: place.container, at_end: true, ..inside },
            None => place,
        }
    }

    /// Does to the stacks what the last token does.
    fn settle(&mut self) {
        match self.last {
            Last::Nothing | Last::Key => {}
            Last::Value { .. } => self.close_value(),
            Last::Open { object } => {
                self.open.push(object);
                self.key_next = object;
                if !object {
                    self.steps.push(Step::Index(0));
                }
            }
            Last::Close => {
                if self.open.pop() == Some(false) {
                    self.steps.pop();
                }
                self.close_value();
            }
        }
    }

    fn in_object(&self) -> bool {
        self.open.last() == Some(&true)
    }

    /// A value of an object has ended: its key no longer leads anywhere.
    fn close_value(&mut self) {
        if self.in_object() && matches!(self.steps.last(), Some(Step::Key(_))) {
            self.steps.pop();
        }
    }

    fn place(&self) -> Place {
        let whole = self.steps.as_slice();
        let around = &whole[..whole.len().saturating_sub(1)];
        let container = match self.last {
            Last::Open { .. } => whole,
            Last::Close | Last::Nothing if self.in_object() => whole,
            _ => around,
        };
        let given = match self.last {
            Last::Value { start, end } => {
                String::from_utf8_lossy(&self.text[start..end]).into_owned()
            }
            Last::Open { object: true } => "an object".to_owned(),
            Last::Open { object: false } => "a list".to_owned(),
            Last::Nothing | Last::Key | Last::Close => String::new(),
        };
        Place { path: path(whole), container: path(container), given, at_end: false }
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    break;
                }
                _ => self.at += 1,
            }
        }
        self.at = self.at.min(self.text.len());
    }
}

fn path(steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps.iter().take(DEPTH_MAX) {
        match step {
            Step::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            Step::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, marked: &str) -> Place {
        let end = text.find(marked).unwrap() + marked.len();
        locate(text.as_bytes(), 1, end)
    }

    #[test]
    fn the_path_leads_through_objects_and_lists() {
        let text = r#"{"a": 1, "items": [{"k": "x"}, {"k": "y", "deep": {"z": 7.5}}], "b": 2}"#;
        assert_eq!(at(text, "1").path, "a");
        assert_eq!(at(text, r#""x""#).path, "items[0].k");
        let place = at(text, "7.5");
        assert_eq!((place.path.as_str(), place.given.as_str()), ("items[1].deep.z", "7.5"));
        assert_eq!(place.container, "items[1].deep");
        assert_eq!(at(text, r#""b": 2"#).path, "b");
        assert_eq!(at(text, r#""b": 2"#).container, "");
    }

    #[test]
    fn containers_and_their_ends_are_places_too() {
        let text = r#"{"a": {"b": {}}, "c": [1, [2, 3]]}"#;
        assert_eq!(at(text, r#""a": {"#).given, "an object");
        assert_eq!(at(text, r#""c": ["#).given, "a list");
        assert_eq!(at(text, r#""b": {}}"#).container, "a");
        let last = r#"{"a": {"b": "x"}, "c": ["y"]}"#;
        assert_eq!(
            (at(last, r#""x"}"#).path, at(last, r#""x"}"#).container),
            ("a.b".into(), "a".into())
        );
        assert_eq!(at(last, r#""y"]"#).path, "c[0]");
        assert_eq!(at(text, r#""a": {"#).path, "a");
        assert_eq!(at(text, r#""b": {}"#).container, "a.b");
        assert_eq!(at(text, "3").path, "c[1][1]");
        assert_eq!(at(text, r#""c""#).container, "");
    }

    #[test]
    fn lines_are_counted_and_escapes_skipped() {
        let text = "{\n  \"a\": \"x\\\"},{\",\n  \"b\": -1\n}";
        let place = locate(text.as_bytes(), 3, 9);
        assert_eq!((place.path.as_str(), place.given.as_str()), ("b", "-1"));
    }

    #[test]
    fn broken_texts_have_places_without_panic() {
        let text = r#"{"a": [{"b": "\u12", ]}}}, :"\"#;
        for end in 0..=text.len() + 3 {
            let _ = locate(text.as_bytes(), 1, end);
            let _ = locate(&text.as_bytes()[..end.min(text.len())], 9, end);
        }
    }
}
