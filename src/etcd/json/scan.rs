//! Where a JSON object ends that arrives in pieces.

/// Looks at each byte once. What is between brackets is left to the reader to judge.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// Bytes that were looked at.
    seen: usize,
    /// Brackets that are open.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl Scanner {
    /// Looks at what has arrived since: `bytes` begins with what it was given before. The length of the
    /// first value, once its last bracket is there; the scanner then begins again behind it.
    ///
    /// # Errors
    /// Something else than an object begins.
    pub(crate) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        while let Some(&byte) = bytes.get(self.seen) {
            if self.depth == 0 && byte != b'{' && !byte.is_ascii_whitespace() {
                return Err(format!(
                    "found `{}`, expected an object",
                    byte.escape_ascii()
                ));
            }
            self.seen += 1;
            if self.is_in_string {
                let is_escaped = std::mem::take(&mut self.is_escaped);
                match byte {
                    _ if is_escaped => {}
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Some(std::mem::take(&mut self.seen)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
