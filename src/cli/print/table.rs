//! Tables, in etcdctl's look: as wide as what is in them.
//!
//! Where that is wider than the terminal, or than [`PAGE`] where there is none, the columns that say the
//! same in every row are left out, and a line below the table has what they say. On a terminal that is not
//! that wide even so, nothing is broken inside a word: a reader who searches for an id or an address wants to
//! read it, and to copy it. What is looked at again and again leaves out more columns then, and says
//! which; everything else shows each row as a block of lines, one for each column. Elsewhere a row stays
//! a line, however long.

use std::io;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::Style;
use comfy_table::presets::ASCII_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

use super::text::{Parts, View, escaped};
use crate::api::KeyValue;

const LOOK: TableStyle = ASCII_FULL_CONDENSED.header_separator(LineStyle::new('+', '-', '+', '+'));

/// How the cells of a column are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

pub(super) fn key_values(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    kvs: &[KeyValue],
) -> io::Result<()> {
    let mut columns = Vec::new();
    if parts != Parts::Values {
        columns.push(("KEY", Align::Left));
    }
    if parts != Parts::Keys {
        columns.push(("VALUE", Align::Left));
    }
    columns.extend([
        ("CREATE REVISION", Align::Right),
        ("MOD REVISION", Align::Right),
        ("VERSION", Align::Right),
    ]);
    let rows = kvs.iter().map(|kv| {
        let mut row = Vec::new();
        if parts != Parts::Values {
            row.push(escaped(view, &kv.key));
        }
        if parts != Parts::Keys {
            row.push(escaped(view, &kv.value));
        }
        row.extend([
            kv.create_revision.to_string(),
            kv.mod_revision.to_string(),
            kv.version.to_string(),
        ]);
        row
    });
    table(out, &columns, rows)
}

/// Of a terminal that says how broad it is, and not how high.
const ROWS: u16 = 24;

/// Columns of a page that no terminal shows: a file, a ticket, a message.
const PAGE: u16 = 100;

/// Whether tables fit what they are printed on. Never in tests.
static FITS: AtomicBool = AtomicBool::new(false);

/// What a table is printed on.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// A terminal of so many columns: nothing may be wider.
    Terminal(u16),
    /// A page: columns are spared, but a row stays a line.
    Page(u16),
    /// As wide as it becomes.
    Endless,
}

impl Room {
    /// Read each time: a window may have been resized.
    fn of_output() -> Self {
        match terminal() {
            _ if !FITS.load(Ordering::Relaxed) => Self::Endless,
            Some((columns, _)) => Self::Terminal(columns),
            None => Self::Page(PAGE),
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Terminal(width) | Self::Page(width) => width.into(),
            Self::Endless => usize::MAX,
        }
    }
}

/// How many columns there are to write to.
pub(in crate::cli) fn room() -> usize {
    Room::of_output().width()
}

/// From here on tables fit what standard output is. To be called by the process, before anything is
/// printed there.
pub fn fit_to_output() {
    FITS.store(true, Ordering::Relaxed);
}

/// How many columns and rows the terminal has that standard output is now, if it is one and says how
/// broad it is.
pub fn terminal() -> Option<(u16, u16)> {
    let output = io::stdout();
    if !output.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&output).ok()?;
    let rows = match size.ws_row {
        0 => ROWS,
        rows => rows,
    };
    (size.ws_col > 0).then_some((size.ws_col, rows))
}

/// A table of text; or a block for each row, where the terminal is not wide enough for it.
///
/// # Errors
/// Those of `out`.
pub fn table(
    out: &mut impl Write,
    columns: &[(&str, Align)],
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    table_of_most(out, columns, &[], rows)
}

/// As [`table`], but a narrow terminal is spared columns first: those of these titles, one after the
/// other, until the rest fits. A line below says which.
///
/// # Errors
/// Those of `out`.
pub fn table_of_most(
    out: &mut impl Write,
    columns: &[(&str, Align)],
    dispensable: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let spare = Spare {
        same: true,
        titles: dispensable,
    };
    table_within(Room::of_output(), out, columns, spare, rows)
}

/// As [`table_of_most`], for what is looked at again and again: what is in a column never decides whether
/// it is there. Each row has its style, which is for the caller to strip where no colours are shown.
///
/// # Errors
/// Those of `out`.
pub fn steady_table(
    out: &mut impl Write,
    columns: &[(&str, Align)],
    dispensable: &[&str],
    rows: impl Iterator<Item = (Style, Vec<String>)>,
) -> io::Result<()> {
    let spare = Spare {
        same: false,
        titles: dispensable,
    };
    let (styles, rows): (Vec<_>, Vec<_>) = rows.unzip();
    let mut plain = Vec::new();
    let room = Room::of_output();
    table_within(room, &mut plain, columns, spare, rows.into_iter())?;
    styled(out, &String::from_utf8_lossy(&plain), &styles)
}

/// Gives each row of a grid its style. Blocks, which only a narrow terminal gets, have none.
fn styled(out: &mut impl Write, table: &str, styles: &[Style]) -> io::Result<()> {
    // A rule, the titles, a rule.
    const HEAD: usize = 3;
    let is_grid = table.starts_with('+');
    for (number, line) in table.lines().enumerate() {
        let row = number.checked_sub(HEAD).filter(|_| is_grid);
        let style = row.and_then(|row| styles.get(row)).copied();
        let style = style.unwrap_or_default();
        writeln!(out, "{style}{line}{style:#}")?;
    }
    Ok(())
}

/// Which columns may be left out where there is no room.
#[derive(Clone, Copy, Debug)]
struct Spare<'a> {
    /// Those that say the same in every row, all together.
    same: bool,
    /// After those, and one after the other.
    titles: &'a [&'a str],
}

/// A table of one row: what a reply says, each thing below its title.
///
/// # Errors
/// Those of `out`.
pub fn table_of_one(out: &mut impl Write, cells: &[(&str, String)]) -> io::Result<()> {
    let align = |cell: &str| match cell.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Align::Right,
        false => Align::Left,
    };
    let columns = cells.iter().map(|(title, cell)| (*title, align(cell)));
    let columns: Vec<(&str, Align)> = columns.collect();
    let row = cells.iter().map(|(_, cell)| cell.clone()).collect();
    table(out, &columns, std::iter::once(row))
}

fn table_within(
    room: Room,
    out: &mut impl Write,
    columns: &[(&str, Align)],
    spare: Spare<'_>,
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.collect();
    let width = room.width();
    let whole = grid(columns, &[], &rows);
    if breadth(&whole) <= width {
        return writeln!(out, "{whole}");
    }
    let same = match spare.same {
        true => same_in_all(columns, &rows),
        false => Vec::new(),
    };
    let differs = |title: &&str| same.iter().all(|(told, _)| told != title);
    let titles = spare.titles.iter().copied();
    let spared: Vec<&str> = titles.filter(differs).collect();
    for count in 0..=spared.len() {
        let same_titles = same.iter().map(|(title, _)| *title);
        let left_out: Vec<&str> = same_titles.chain(spared[..count].iter().copied()).collect();
        let grid = grid(columns, &left_out, &rows);
        let is_page = matches!(room, Room::Page(_)) && count == spared.len();
        if breadth(&grid) > width && !is_page {
            continue;
        }
        writeln!(out, "{grid}")?;
        let told = same.iter().map(|(title, cell)| match *cell {
            "" => format!("no {title}"),
            cell => format!("{title} {cell}"),
        });
        let told: Vec<String> = told.collect();
        note(out, width, "the same in all rows: ", &told)?;
        return note(out, width, "no room for ", &spared[..count]);
    }
    blocks(width, out, columns, &rows)
}

/// Columns, but for the first, that say the same in every row of several, or nothing at all, with what they
/// say. It must be short: a sentence is no easier to read below the table.
fn same_in_all<'a>(
    columns: &[(&'a str, Align)],
    rows: &'a [Vec<String>],
) -> Vec<(&'a str, &'a str)> {
    const LONGEST: usize = 40;
    let [first, others @ ..] = rows else {
        return Vec::new();
    };
    let titles = columns.iter().zip(first).enumerate().skip(1);
    titles
        .filter(|(index, (_, cell))| {
            let is_same = others.iter().all(|row| row[*index] == **cell);
            let tells = !others.is_empty() || cell.is_empty();
            tells && is_same && characters(cell) <= LONGEST
        })
        .map(|(_, ((title, _), cell))| (*title, cell.as_str()))
        .collect()
}

/// A line below a table, unless there is nothing to tell.
fn note<T: AsRef<str>>(
    out: &mut impl Write,
    width: usize,
    begin: &str,
    told: &[T],
) -> io::Result<()> {
    if told.is_empty() {
        return Ok(());
    }
    let told: Vec<&str> = told.iter().map(AsRef::as_ref).collect();
    lines(&format!("{begin}{}", told.join(", ")), width)
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))
}

/// Of a grid: its first line is the rule above the titles.
fn breadth(grid: &str) -> usize {
    grid.find('\n').unwrap_or(grid.len())
}

/// As wide as it becomes, without the columns of some titles.
fn grid(columns: &[(&str, Align)], left_out: &[&str], rows: &[Vec<String>]) -> String {
    let kept: Vec<usize> = (0..columns.len())
        .filter(|index| !left_out.contains(&columns[*index].0))
        .collect();
    let mut table = Table::new();
    table.load_style(LOOK);
    let title = |index: &usize| Cell::new(columns[*index].0).set_alignment(CellAlignment::Center);
    table.set_header(kept.iter().map(title));
    for row in rows {
        table.add_row(kept.iter().map(|index| row[*index].as_str()));
    }
    for (place, index) in kept.iter().enumerate() {
        let alignment = match columns[*index].1 {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        };
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(alignment);
        }
    }
    table.to_string()
}

/// A block for each row, as psql shows what is too wide: a line for each column, its title first. What
/// has no room beside its title goes on below, from word to word.
fn blocks(
    width: usize,
    out: &mut impl Write,
    columns: &[(&str, Align)],
    rows: &[Vec<String>],
) -> io::Result<()> {
    let titles = columns.iter().map(|(title, _)| characters(title)).max();
    let titles = titles.unwrap_or(0);
    let room = width.saturating_sub(titles + 3);
    let cells = rows.iter().flatten().map(|cell| characters(cell)).max();
    let broad = (titles + 3 + cells.unwrap_or(0)).min(width);
    for (number, row) in rows.iter().enumerate() {
        let rule = format!("{:-<1$}+", format!("-[ {} ]", number + 1), titles + 1);
        writeln!(out, "{rule:-<broad$}")?;
        for ((title, _), cell) in columns.iter().zip(row) {
            let mut title = *title;
            for line in lines(cell, room) {
                match characters(&line) <= room {
                    true => writeln!(out, "{}", format!("{title:<titles$} | {line}").trim_end())?,
                    // One word, and it stays whole: it has a line of its own.
                    false => {
                        if !title.is_empty() {
                            writeln!(out, "{title:<titles$} |")?;
                        }
                        writeln!(out, "{line}")?;
                    }
                }
                title = "";
            }
        }
    }
    Ok(())
}

/// Text in lines of so many characters at most, or of a single word that is longer. Never none.
pub(in crate::cli) fn lines(text: &str, room: usize) -> Vec<String> {
    if characters(text) <= room {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if characters(line) + 1 + characters(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `endpoint status` shows nodes, and `member list`, and the doctor.
    const COLUMNS: [(&str, Align); 9] = [
        ("ENDPOINT", Align::Left),
        ("ID", Align::Left),
        ("NAME", Align::Left),
        ("PEER ADDRS", Align::Left),
        ("APPLIED", Align::Right),
        ("USED/QUOTA", Align::Right),
        ("LEASE VALID", Align::Left),
        ("LEASE REMAINING", Align::Right),
        ("WHAT TO DO", Align::Left),
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |node: u32, advice: &str| {
            let row = [
                &format!("10.20.30.{node}:7400"),
                &format!("8211f1d0f64f326{node}"),
                &format!("n{node}"),
                &format!("leasehold-{node}.leasehold.svc:7401"),
                &format!("123456{node}"),
                &format!("{}25kB/2.1GB", node),
                &(node == 1).to_string(),
                &format!("43{node}ms"),
                advice,
            ];
            row.map(str::to_owned).to_vec()
        };
        vec![
            row(
                1,
                "is the node running, and is its client port open for UDP?",
            ),
            row(2, ""),
        ]
    }

    fn spare<'a>(titles: &'a [&'a str]) -> Spare<'a> {
        Spare { same: true, titles }
    }

    fn printed(width: Option<u16>, dispensable: &[&str]) -> String {
        let room = width.map_or(Room::Endless, Room::Terminal);
        let mut out = Vec::new();
        let spare = spare(dispensable);
        table_within(room, &mut out, &COLUMNS, spare, rows().into_iter()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_that_say_the_same_in_all_rows_go_below_the_table_where_it_is_too_wide() {
        let columns = ["NODE", "VERSION", "ROLE", "TERM", "NOTE"].map(|it| (it, Align::Left));
        let rows = || {
            let rows = [
                ["10.20.30.1:7400", "0.1.0", "leader", "2", ""],
                ["10.20.30.2:7400", "0.1.0", "follower", "2", ""],
            ];
            rows.into_iter().map(|row| row.map(str::to_owned).to_vec())
        };
        let printed = |room, count| {
            let mut out = Vec::new();
            table_within(
                room,
                &mut out,
                &columns,
                spare(&["ROLE"]),
                rows().take(count),
            )
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        let wide = printed(Room::Page(60), 2);
        assert!(wide.contains("| VERSION |"), "there is room for it: {wide}");
        let narrow = "\
+-----------------+----------+
|       NODE      |   ROLE   |
+-----------------+----------+
| 10.20.30.1:7400 | leader   |
| 10.20.30.2:7400 | follower |
+-----------------+----------+
";
        let below = "the same in all rows: VERSION 0.1.0, TERM 2, no NOTE\n";
        for room in [Room::Page(52), Room::Terminal(52)] {
            assert_eq!(printed(room, 2), format!("{narrow}{below}"), "{room:?}");
        }
        let page = printed(Room::Page(10), 2);
        let first = page.lines().next().unwrap();
        assert_eq!(first, "+-----------------+", "a row stays a line: {page}");
        assert!(page.ends_with("no room\nfor ROLE\n"), "{page}");
        let one = printed(Room::Page(30), 1);
        assert!(
            one.contains(" VERSION "),
            "one row has nothing to share: {one}"
        );
    }

    fn assert_whole(text: &str, what: &str, width: u16) {
        let whole = text.lines().any(|line| line.contains(what));
        assert!(whole, "`{what}` is not in one line at {width}:\n{text}");
    }

    #[test]
    fn ids_addresses_and_titles_stay_whole_at_every_width() {
        for width in [40, 80, 120, 200] {
            let text = printed(Some(width), &[]);
            for line in text.lines() {
                assert!(line.chars().count() <= width.into(), "{width}:\n{text}");
                assert_eq!(line.trim_end(), line, "{width}: blanks at the end");
            }
            for (title, _) in COLUMNS {
                assert_whole(&text, title, width);
            }
            for row in rows() {
                // All but the advice, which is prose.
                for cell in &row[..8] {
                    assert_whole(&text, cell, width);
                }
            }
            let words: Vec<&str> = text.split([' ', '|', '\n']).collect();
            for word in rows()[0][8].split(' ') {
                assert!(words.contains(&word), "`{word}` at {width}:\n{text}");
            }
        }
    }

    #[test]
    fn what_fits_is_a_grid_and_what_does_not_is_a_block_for_each_row() {
        let grid = printed(None, &[]);
        let natural = u16::try_from(grid.find('\n').unwrap()).unwrap();
        assert_eq!(printed(Some(natural), &[]), grid, "there is room for it");
        let short = |width| {
            let columns = [("CHECK", Align::Left), ("WHAT TO DO", Align::Left)];
            let row = ["connect", "is its port open for UDP?"].map(str::to_owned);
            let mut out = Vec::new();
            table_within(
                Room::Terminal(width),
                &mut out,
                &columns,
                spare(&[]),
                [row.to_vec()].into_iter(),
            )
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(short(39).starts_with("+---------+-"), "{}", short(39));
        assert_eq!(
            short(38),
            "-[ 1 ]-----+--------------------------\n\
             CHECK      | connect\n\
             WHAT TO DO | is its port open for UDP?\n"
        );
        assert_eq!(
            short(27),
            "-[ 1 ]-----+---------------\n\
             CHECK      | connect\n\
             WHAT TO DO | is its port\n           \
             | open for UDP?\n"
        );
        assert_eq!(
            short(8),
            "-[ 1 ]-----+\nCHECK      |\nconnect\nWHAT TO DO |\nis\nits\nport\nopen\nfor\nUDP?\n",
            "a word is not broken, however narrow it is"
        );
    }

    #[test]
    fn columns_are_left_out_by_rank_and_it_says_which() {
        let ranks = ["WHAT TO DO", "PEER ADDRS", "LEASE REMAINING"];
        let wide = printed(None, &ranks);
        assert_eq!(
            wide,
            printed(None, &[]),
            "nothing is left out where there is room"
        );
        let some = printed(Some(120), &ranks);
        assert!(
            some.ends_with("\nno room for WHAT TO DO, PEER ADDRS\n"),
            "{some}"
        );
        assert_whole(&some, "| LEASE REMAINING |", 120);
        assert!(!some.contains("7401"), "{some}");
        let narrow = printed(Some(40), &ranks);
        assert_eq!(narrow, printed(Some(40), &[]), "not even the rest fits");
    }

    #[test]
    fn each_row_of_a_grid_has_its_style_and_what_is_around_has_none() {
        let bold = Style::new().bold();
        let styles = [Style::new(), bold];
        let styled = |table: &str| {
            let mut out = Vec::new();
            styled(&mut out, table, &styles).unwrap();
            String::from_utf8(out).unwrap()
        };
        let grid = printed(None, &[]);
        let (above, row) = (&grid.lines().collect::<Vec<_>>()[..4], 4);
        let shown = styled(&grid);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(&lines[..4], above);
        let expected = format!("\u{1b}[1m{}\u{1b}[0m", grid.lines().nth(row).unwrap());
        assert_eq!(lines[row], expected);
        assert_eq!(lines.last(), grid.lines().last().as_ref());
        let blocks = printed(Some(40), &[]);
        assert_eq!(styled(&blocks), blocks);
    }
}
