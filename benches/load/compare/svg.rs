//! The picture: ratios to etcd as bars on linear scales, so that lengths can be compared.
//!
//! It is drawn from the tables as they are published, and so shows what they say: a test draws that of
//! `docs/performance.md` again.

use std::fmt::Write as _;

use super::rows::{Spread, times};

const WIDTH: f64 = 980.0;
const NAMES: f64 = 270.0;
/// How much of a panel its bars take; the rest is for what is written behind the longest of them.
const BARS: f64 = 170.0;
const PANEL: f64 = 235.0;
const TOP: f64 = 84.0;
const ROW: f64 = 20.0;
const BAR: f64 = 12.0;
const BETTER: &str = "#2a6fb0";
const WORSE: &str = "#c4703a";

/// Rows of one figure, of ours over etcd's.
struct Panel {
    title: &'static str,
    is_more_better: bool,
    ratios: Vec<Option<Spread>>,
}

/// What a page with the tables of a comparison shows, as SVG; nothing if no row was compared with etcd.
pub(crate) fn picture(page: &str) -> Option<String> {
    let loads = rows(page, "Load");
    let gaps = rows(page, "Time without");
    if loads.is_empty() && gaps.is_empty() {
        return None;
    }
    let panel = |title, is_more_better, ratios| Panel {
        title,
        is_more_better,
        ratios,
    };
    let quotients = |ours, theirs| loads.iter().map(|row| over(row, ours, theirs)).collect();
    let last = |rows: &[Vec<&str>]| rows.iter().map(|row| last_ratio(row)).collect();
    let of_loads = [
        panel("Throughput (more is better)", true, last(&loads)),
        panel("p99 latency (less is better)", false, quotients(3, 7)),
        panel(
            "CPU of all servers (less is better)",
            false,
            quotients(4, 8),
        ),
    ];
    let of_gaps = panel("Time without (less is better)", false, last(&gaps));

    let below = TOP + ROW * loads.len() as f64 + 70.0;
    let height = below + ROW * gaps.len() as f64 + 30.0;
    let mut svg = head(page, height);
    write_names(&mut svg, &loads, TOP);
    for (place, panel) in of_loads.iter().enumerate() {
        panel.draw(&mut svg, NAMES + PANEL * place as f64, TOP);
    }
    write_names(&mut svg, &gaps, below);
    of_gaps.draw(&mut svg, NAMES, below);
    svg.push_str("</svg>\n");
    Some(svg)
}

/// The cells of the first table whose first column has this heading, of rows that have a ratio.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let start = format!("| {heading} |");
    let table = page.lines().skip_while(|line| !line.starts_with(&start));
    let lines = table.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect();
    let rows = lines.map(cells);
    rows.filter(|row: &Vec<&str>| last_ratio(row).is_some())
        .collect()
}

/// The ratio that the table has itself, with its range.
fn last_ratio(cells: &[&str]) -> Option<Spread> {
    let words = cells.last()?.split([' ', '(', ')', '×']);
    let mut numbers = words.filter_map(|word| word.parse().ok());
    let median = numbers.next()?;
    Some(Spread {
        median,
        least: numbers.next().unwrap_or(median),
        most: numbers.next().unwrap_or(median),
    })
}

/// One duration of a row over another.
fn over(cells: &[&str], ours: usize, theirs: usize) -> Option<Spread> {
    Spread::of(&[micros(cells.get(ours)?)?], &[micros(cells.get(theirs)?)?])
}

/// A duration as a table has it, with or without a blank.
fn micros(cell: &str) -> Option<f64> {
    let end = cell.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, unit) = cell.split_at(end);
    let scale = match unit.trim() {
        "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * scale)
}

fn head(page: &str, height: f64) -> String {
    let word = |before: &str| {
        let words = page.split(before).skip(1);
        let word = |text: &str| {
            let end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '.';
            text.split(end).next().unwrap_or_default().to_owned()
        };
        let mut words = words.map(word);
        words.find(|word| word.contains(|letter: char| letter.is_ascii_digit()))
    };
    let etcd = word("etcd ").unwrap_or_default();
    let commit = word("commit ").unwrap_or_default();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"15\">leasehold / etcd {etcd}, three nodes of each on one \
         machine, in turns (commit {commit})</text>\n\
         <rect x=\"10\" y=\"34\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{BETTER}\"/>\n\
         <text x=\"27\" y=\"44\">better than etcd</text>\n\
         <rect x=\"140\" y=\"34\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{WORSE}\"/>\n\
         <text x=\"157\" y=\"44\">worse</text>\n\
         <text x=\"215\" y=\"44\" fill=\"#555555\">1 is etcd; thin lines: the least and the greatest ratio \
         of neighbours</text>\n"
    )
}

fn write_names(svg: &mut String, rows: &[Vec<&str>], top: f64) {
    for (place, cells) in rows.iter().enumerate() {
        let name = cells.first().copied().unwrap_or_default();
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            NAMES - 8.0,
            top + ROW * place as f64 + BAR - 1.0,
            escaped(name)
        );
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64, top: f64) {
        let known = || self.ratios.iter().flatten();
        let most = known().map(|ratio| ratio.most).fold(1.0, f64::max);
        let x = |ratio: f64| left + BARS * ratio / most;
        let bottom = top + ROW * self.ratios.len() as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{left:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            top - 12.0,
            self.title
        );
        write_scale(svg, most, x, (top, bottom));
        let mut labels = String::new();
        for (place, ratio) in self.ratios.iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let y = top + ROW * place as f64;
            let colour = match (ratio.median > 1.0) == self.is_more_better {
                true => BETTER,
                false => WORSE,
            };
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" \
                 fill=\"{colour}\"/>\n\
                 <path d=\"M{:.1} {:.1}H{:.1}\" stroke=\"#222222\"/>",
                x(ratio.median) - left,
                x(ratio.least),
                y + BAR / 2.0,
                x(ratio.most),
            );
            let _ = writeln!(
                labels,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\" stroke=\"#ffffff\" stroke-width=\"3\" \
                 paint-order=\"stroke\">{}</text>",
                x(ratio.most) + 5.0,
                y + BAR - 2.0,
                times(ratio.median),
            );
        }
        // Over the bars, which would hide it, and under what is written.
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {top:.1}V{bottom:.1}\" stroke=\"#222222\" stroke-dasharray=\"3 2\"/>",
            x(1.0)
        );
        svg.push_str(&labels);
    }
}

/// Lines at round ratios, and at one, which is etcd.
fn write_scale(svg: &mut String, most: f64, x: impl Fn(f64) -> f64, (top, bottom): (f64, f64)) {
    let steps = [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0];
    let step = steps.into_iter().find(|step| most / step < 6.0);
    let step = step.unwrap_or(100.0);
    let round = (0..=(most / step) as u32).map(|place| step * f64::from(place));
    for ratio in round.filter(|ratio| *ratio != 1.0).chain([1.0]) {
        let weight = if ratio == 1.0 { "bold" } else { "normal" };
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\" font-size=\"10\" \
             font-weight=\"{weight}\">{ratio}</text>",
            bottom + 12.0,
            x = x(ratio),
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
