//! From a place in a JSON text to the field that stands there.

/// Most levels that a path names; deeper ones are left out. No body nests further than this.
const DEPTH_MAX: usize = 32;

/// What stands at a place of a JSON text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Path of the value that ends or begins there; empty for the whole text.
    pub(super) path: String,
    /// Path of the object or list around it, or of the one that has just ended.
    pub(super) container: String,
    /// The value's own text; for an object or a list, the word.
    pub(super) given: String,
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

struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    end: usize,
    /// Steps from the root to the value under way.
    steps: Vec<Step>,
    /// For each open container: whether it is an object.
    open: Vec<bool>,
    place: Place,
}

impl<'a> Walk<'a> {
    fn new(text: &'a [u8], end: usize) -> Self {
        Self { text, at: 0, end, steps: Vec::new(), open: Vec::new(), place: Place::default() }
    }

    fn run(mut self) -> Place {
        let mut key_next = false;
        while self.at < self.end {
            match self.text[self.at] {
                open @ (b'{' | b'[') => {
                    self.note(if open == b'{' { "an object" } else { "a list" }.into());
                    self.open.push(open == b'{');
                    key_next = open == b'{';
                    if open == b'[' {
                        self.steps.push(Step::Index(0));
                    }
                    self.at += 1;
                    self.place.container = self.container();
                }
                b'}' | b']' => {
                    self.place.container = self.container();
                    let was_object = self.open.pop().unwrap_or(true);
                    if !was_object {
                        self.steps.pop();
                    }
                    self.close_value();
                    key_next = false;
                    self.at += 1;
                }
                b',' => {
                    key_next = self.open.last() == Some(&true);
                    if let (false, Some(Step::Index(index))) = (key_next, self.steps.last_mut()) {
                        *index += 1;
                    }
                    self.at += 1;
                }
                b'"' => {
                    let start = self.at;
                    self.skip_string();
                    let token = &self.text[start..self.at];
                    self.place.container = self.container();
                    if key_next {
                        key_next = false;
                        let key = serde_json::from_slice(token)
                            .unwrap_or_else(|_| String::from_utf8_lossy(token).into_owned());
                        self.steps.push(Step::Key(key));
                        self.note(String::new());
                    } else {
                        self.note(String::from_utf8_lossy(token).into_owned());
                        self.close_value();
                    }
                }
                b':' => self.at += 1,
                byte if byte.is_ascii_whitespace() => self.at += 1,
                _ => {
                    let start = self.at;
                    while self.at < self.text.len()
                        && !matches!(self.text[self.at], b',' | b'}' | b']' | b':')
                        && !self.text[self.at].is_ascii_whitespace()
                    {
                        self.at += 1;
                    }
                    self.place.container = self.container();
                    self.note(String::from_utf8_lossy(&self.text[start..self.at]).into_owned());
                    self.close_value();
                }
            }
        }
        self.place
    }

    /// Remembers the value under way as the last one seen.
    fn note(&mut self, given: String) {
        self.place.path = path(&self.steps);
        self.place.given = given;
    }

    /// A value of an object has ended: its key no longer leads anywhere.
    fn close_value(&mut self) {
        if self.open.last() == Some(&true) {
            self.steps.pop();
        }
    }

    fn container(&self) -> String {
        match self.open.last() {
            Some(true) => path(&self.steps[..self.object_depth()]),
            _ => path(&self.steps[..self.steps.len().saturating_sub(1)]),
        }
    }

    /// Steps that lead to the innermost open object: all but a key that is under way.
    fn object_depth(&self) -> usize {
        let lists = self.open.iter().filter(|object| !**object).count();
        let keys_of_parents =
            self.open.iter().skip(1).zip(&self.open).filter(|(_, parent)| **parent);
        (lists + keys_of_parents.count()).min(self.steps.len())
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while self.at < self.text.len() {
            match self.text[self.at] {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return;
                }
                _ => self.at += 1,
            }
        }
        self.at = self.text.len();
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
