//! Figures, and how they are written for people.

use std::time::Duration;

/// The middle one, or the mean of the middle two; zero of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (count, middle) if count % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// A count, in groups of three digits.
pub fn number_text(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A latency, with three digits at most.
pub fn duration_text(taken: Duration) -> String {
    micros_text(taken.as_secs_f64() * 1e6)
}

/// The same, of microseconds.
pub fn micros_text(micros: f64) -> String {
    let (number, unit) = match micros {
        micros if micros < 999.5 => (micros, "µs"),
        micros if micros < 999_500.0 => (micros / 1e3, "ms"),
        micros => (micros / 1e6, "s"),
    };
    // Three digits, no more than are known and no zeros behind the point.
    let digits = match number {
        number if number < 9.995 => 2,
        number if number < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{number:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

/// A ratio, with two or three digits.
pub fn ratio_text(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 0.1 => format!("{ratio:.3}"),
        ratio if ratio < 10.0 => format!("{ratio:.2}"),
        ratio => format!("{ratio:.1}"),
    }
}
