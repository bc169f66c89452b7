//! A terminal that is drawn on again and again, and is afterwards as it was.
//!
//! What is drawn goes to the terminal's alternate screen, so that nothing of what was there before is
//! lost; each frame is drawn over the one before, line by line, so that nothing flickers. However it
//! ends, the terminal is given back: by [`Screen::end`], or when the screen is dropped, which an error
//! does, and an interrupt within [`until_interrupted`].

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::io::Write;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

use crate::cli::failure::Failure;
use crate::cli::print::lines;
use crate::cli::signals::Stop;

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The cursor, and the screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// The line that the cursor is in.
const CLEAR_LINE: &str = "\x1b[2K";
/// Everything from the cursor on.
const CLEAR_BELOW: &str = "\x1b[J";

/// Does the work, which draws on a screen if `live`, until it is done or the user types Ctrl-C: to be
/// done with looking is no failure.
///
/// # Errors
/// Those of the work.
pub(super) async fn until_interrupted(
    live: bool,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    if !live {
        return work.await;
    }
    let mut stop = Stop::listen()?;
    tokio::select! {
        done = work => done,
        () = stop.asked() => Ok(()),
    }
}

/// Columns and rows of a terminal that does not say how large it is.
pub(super) const TERMINAL: (u16, u16) = (80, 24);

/// Of what is well, of what soon may not be, and of what is not.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default();

/// Whether the terminal that standard output is shall have colours: NO_COLOR says that it shall not, and
/// some terminals cannot.
pub(super) fn wants_colours() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// What frames are shown on.
pub(super) struct Screen<'a, W: Write> {
    out: &'a mut W,
    has_colours: bool,
    /// Frames are drawn over each other; else one follows the other.
    live: bool,
    is_entered: bool,
}

impl<'a, W: Write> Screen<'a, W> {
    /// Shows frames on `out`; `live` if that is a terminal on which one replaces the other. Only there they have
    /// colours, if at all: what stays on a terminal is plain, as what programs read.
    pub(super) fn new(out: &'a mut W, live: bool, has_colours: bool) -> Self {
        Self {
            out,
            has_colours,
            live,
            is_entered: false,
        }
    }

    /// Shows a frame, on a terminal of so many columns and rows.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn show(&mut self, frame: &str, (columns, rows): (u16, u16)) -> io::Result<()> {
        if !self.live {
            write!(self.out, "{}", strip_str(frame))?;
            return self.out.flush();
        }
        let frame: Cow<'_, str> = match self.has_colours {
            true => frame.into(),
            false => strip_str(frame).to_string().into(),
        };
        let mut drawn = String::new();
        if !self.is_entered {
            self.is_entered = true;
            drawn.push_str(ENTER);
        }
        draw(&mut drawn, &frame, columns.into(), rows.into());
        self.out.write_all(drawn.as_bytes())?;
        self.out.flush()
    }

    /// Gives the terminal back, and leaves the last frame on it.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn end(mut self, last_frame: &str) -> io::Result<()> {
        if self.is_entered {
            self.leave()?;
            write!(self.out, "{}", strip_str(last_frame))?;
        }
        self.out.flush()
    }

    fn leave(&mut self) -> io::Result<()> {
        self.is_entered = false;
        self.out.write_all(LEAVE.as_bytes())?;
        self.out.flush()
    }
}

impl<W: Write> Drop for Screen<'_, W> {
    fn drop(&mut self) {
        if self.is_entered {
            // A terminal that has gone away needs nothing back.
            let _ = self.leave();
        }
    }
}

/// Draws a frame over what is there. What is too long for a line goes on in the next; what there is no
/// row for is left out, for a terminal that scrolls would lose the top.
fn draw(drawn: &mut String, frame: &str, columns: usize, rows: usize) {
    drawn.push_str(HOME);
    let shown: Vec<String> = frame
        .lines()
        .flat_map(|line| fitted(line, columns))
        .take(rows)
        .collect();
    for (number, line) in shown.iter().enumerate() {
        if number > 0 {
            drawn.push_str("\r\n");
        }
        // Before the text: after a line that is full, the cursor still stands on its last character.
        drawn.push_str(CLEAR_LINE);
        drawn.push_str(line);
    }
    if shown.len() < rows {
        drawn.push_str("\r\n");
        drawn.push_str(CLEAR_BELOW);
    }
}

/// A line as it is, if it fits; else in lines that do, without its colours.
fn fitted(line: &str, columns: usize) -> Vec<String> {
    let plain = strip_str(line).to_string();
    if plain.chars().count() <= columns {
        return vec![line.to_owned()];
    }
    let lines = lines(&plain, columns).into_iter();
    lines.flat_map(|line| pieces(&line, columns)).collect()
}

/// A line in pieces of so many characters. Never none.
fn pieces(line: &str, columns: usize) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    match characters.is_empty() || columns == 0 {
        true => vec![line.to_owned()],
        false => characters
            .chunks(columns)
            .map(|piece| piece.iter().collect())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_drawn_over_each_other_and_the_terminal_is_given_back() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, true, true);
        screen.show("one\ntwo\n", (80, 24)).unwrap();
        screen.show("three\n", (80, 24)).unwrap();
        screen.end("three\n").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "\x1b[?1049h\x1b[?25l\
             \x1b[H\x1b[2Kone\r\n\x1b[2Ktwo\r\n\x1b[J\
             \x1b[H\x1b[2Kthree\r\n\x1b[J\
             \x1b[?25h\x1b[?1049lthree\n"
        );
        assert!(!text.contains("\x1b[2J"), "it does not flicker");
    }

    #[test]
    fn a_screen_that_is_dropped_gives_the_terminal_back_once_and_only_if_it_took_it() {
        let mut out = Vec::new();
        drop(Screen::new(&mut out, true, true));
        assert!(out.is_empty(), "nothing was drawn");
        let mut screen = Screen::new(&mut out, true, true);
        screen.show("one\n", (80, 24)).unwrap();
        drop(screen);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with(ENTER) && text.ends_with(LEAVE), "{text:?}");
        assert_eq!(text.matches(LEAVE).count(), 1, "{text:?}");
    }

    #[test]
    fn what_is_no_terminal_gets_one_frame_after_the_other() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, false, true);
        screen.show("one\n", (80, 24)).unwrap();
        screen.show("two\n", (80, 24)).unwrap();
        screen.end("two\n").unwrap();
        assert_eq!(out, b"one\ntwo\n");
    }

    #[test]
    fn a_frame_is_never_larger_than_the_terminal() {
        let mut drawn = String::new();
        draw(&mut drawn, "a line of words\nabcdefghij\nmore\n", 8, 4);
        let rows: Vec<&str> = drawn.strip_prefix(HOME).unwrap().split("\r\n").collect();
        let plain: Vec<&str> = rows
            .iter()
            .map(|row| row.strip_prefix(CLEAR_LINE).unwrap())
            .collect();
        assert_eq!(plain, ["a line", "of words", "abcdefgh", "ij"]);
    }

    #[test]
    fn colours_are_shown_while_frames_replace_each_other_and_never_make_a_line_too_long() {
        let frame = format!("{GOOD}abcdefgh{GOOD:#}\n{BAD}one word{BAD:#}\n");
        let shown = |live, has_colours, columns| {
            let mut out = Vec::new();
            let mut screen = Screen::new(&mut out, live, has_colours);
            screen.show(&frame, (columns, 24)).unwrap();
            screen.end(&frame).unwrap();
            String::from_utf8(out).unwrap()
        };
        let without = "abcdefgh\none word\n";
        assert_eq!(shown(false, false, 80), without);
        assert_eq!(shown(false, true, 80), without);
        let live = shown(true, true, 8);
        assert!(live.ends_with(&format!("{LEAVE}{without}")), "{live:?}");
        assert!(
            live.contains("\x1b[2K\x1b[32mabcdefgh\x1b[0m\r\n"),
            "{live:?}"
        );
        let narrow = shown(true, true, 4);
        let drawn = "\x1b[2Kabcd\r\n\x1b[2Kefgh\r\n\x1b[2Kone\r\n\x1b[2Kword\r\n";
        assert!(narrow.contains(drawn), "{narrow:?}");
        let plain = shown(true, false, 80);
        assert!(!plain.contains("\x1b[3"), "{plain:?}");
    }
}
