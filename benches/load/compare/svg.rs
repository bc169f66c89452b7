//! The picture: throughput of both stores, row by row, on a logarithmic scale.

use std::fmt::Write as _;

use leasehold::bench::figures::number_text;

use super::Results;
use super::rows::times;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 290.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 84.0;
const ROW: f64 = 38.0;
const BAR: f64 = 13.0;
const OURS: &str = "#2a6fb0";
const THEIRS: &str = "#c4a35a";

/// Every row that has a throughput, as SVG.
pub(crate) fn picture(measured: &Results) -> String {
    let figures: Vec<_> = measured
        .rows
        .iter()
        .map(|(row, ours, theirs)| (row.name, row.throughputs(ours, theirs)))
        .collect();
    let all = || {
        figures
            .iter()
            .flat_map(|(_, (ours, theirs, _))| [*ours, *theirs])
            .flatten()
    };
    let most = all().fold(10.0, f64::max);
    let least = all().filter(|figure| *figure > 0.0).fold(most, f64::min);
    // Whole powers of ten, so that the lines have round numbers.
    let (from, to) = (least.log10().floor(), most.log10().ceil());
    let decades = (to - from).max(1.0);
    let across = WIDTH - LEFT - RIGHT;
    let x =
        |figure: f64| LEFT + across * ((figure.max(1.0).log10() - from) / decades).clamp(0.0, 1.0);
    let height = TOP + ROW * figures.len() as f64 + 20.0;

    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"15\">Requests a second, three nodes on one machine \
         (logarithmic)</text>\n\
         <text x=\"10\" y=\"40\" fill=\"#555555\" font-size=\"10\">{}</text>\n\
         <rect x=\"10\" y=\"52\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{OURS}\"/>\n\
         <text x=\"28\" y=\"63\">leasehold {}</text>",
        escaped(&measured.report.heading.machine()),
        escaped(measured.report.heading.version)
    );
    if let Some(version) = &measured.etcd {
        let _ = writeln!(
            svg,
            "<rect x=\"150\" y=\"52\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{THEIRS}\"/>\n\
             <text x=\"168\" y=\"63\">etcd {}</text>\n\
             <text x=\"{:.1}\" y=\"63\" text-anchor=\"end\">leasehold / etcd</text>",
            escaped(version),
            WIDTH - 10.0
        );
    }
    for decade in 0..=decades as u32 {
        let figure = 10_f64.powf(from + f64::from(decade));
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#777777\" \
             font-size=\"10\">{}</text>",
            height - 20.0,
            height - 6.0,
            number_text(figure),
            x = x(figure),
        );
    }
    for (place, (name, (ours, theirs, ratio))) in figures.iter().enumerate() {
        let y = TOP + ROW * place as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + BAR + 4.0,
            escaped(name)
        );
        for (figure, colour, y) in [(ours, OURS, y), (theirs, THEIRS, y + BAR + 2.0)] {
            let Some(figure) = figure else { continue };
            let end = x(*figure);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" \
                 fill=\"{colour}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{}</text>",
                end - LEFT,
                end + 4.0,
                y + BAR - 3.0,
                number_text(*figure)
            );
        }
        if let Some(ratio) = ratio {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-weight=\"bold\">{}</text>",
                WIDTH - 10.0,
                y + BAR + 4.0,
                times(ratio.median)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
