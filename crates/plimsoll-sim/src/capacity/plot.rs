//! The table as a picture: wait and external hours against users, one line per strategy.

use std::fmt::Write as _;

use super::{Params, Row, Strategy};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 460.0;
/// Both panels: where they begin and end from above, and how wide they are.
const TOP: f64 = 104.0;
const BOTTOM: f64 = 384.0;
const PANEL: f64 = 380.0;
/// Where each panel begins from the left.
const LEFT: [f64; 2] = [76.0, 556.0];
/// Space at both sides of a panel within which nothing is drawn.
const INSET: f64 = 16.0;

/// Colours are legible on light and dark ground and told apart by the colour-blind; dashes and
/// marks tell the lines apart without any.
const STYLE: &str = "\
svg{color-scheme:light dark;font-family:system-ui,sans-serif;font-size:13px}\
.ground{fill:#fff}text{fill:#1f2328}.small{fill:#59636e;font-size:12px}.head{font-size:16px;font-weight:600}\
.name{font-weight:600}.grid{stroke:#d8dee4}.axis{stroke:#59636e}\
.line{fill:none;stroke-width:2}.mark{stroke-width:2;fill:#fff}\
.hold{stroke:#0072b2}.release{stroke:#b35900}.preempt-idle{stroke:#00795a}.preempt-lru{stroke:#a8447f}\
.release.line{stroke-dasharray:9 4}.preempt-idle.line{stroke-dasharray:3 3}\
.preempt-lru.line{stroke-dasharray:10 3 2 3}\
@media (prefers-color-scheme:dark){\
.ground{fill:#0d1117}text{fill:#e6edf3}.small{fill:#9198a1}.grid{stroke:#2f353d}.axis{stroke:#9198a1}\
.mark{fill:#0d1117}\
.hold{stroke:#58a6ff}.release{stroke:#f0883e}.preempt-idle{stroke:#3fb98a}.preempt-lru{stroke:#e07cb5}}";

/// What one panel shows.
struct Panel {
    left: f64,
    name: &'static str,
    unit: &'static str,
    value: fn(&Row) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel {
        left: LEFT[0],
        name: "Wait for a computer, 95th percentile",
        unit: "seconds",
        value: |row| row.mean.wait_p95_seconds,
    },
    Panel {
        left: LEFT[1],
        name: "Computers outside the pool",
        unit: "hours",
        value: |row| row.mean.external_hours,
    },
];

/// A stand-alone SVG of these rows; it follows the reader's light or dark scheme.
///
/// The same rows give the same bytes. Without rows the panels are empty.
#[must_use]
pub fn svg(rows: &[Row], params: &Params) -> String {
    let strategies: Vec<Strategy> = Strategy::ALL
        .into_iter()
        .filter(|strategy| rows.iter().any(|row| row.strategy == *strategy))
        .collect();
    let mut text = String::new();
    put(
        &mut text,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-labelledby=\"title desc\">"
        ),
    );
    put(
        &mut text,
        format_args!("<title id=\"title\">What {} slots give their users</title>", params.slots),
    );
    put(
        &mut text,
        format_args!(
            "<desc id=\"desc\">Two charts against the number of users, one line for each strategy: \
         the 95th percentile of waits in seconds, and hours of computers outside.</desc>"
        ),
    );
    put(&mut text, format_args!("<style>{STYLE}</style>"));
    put(&mut text, format_args!("<rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>"));
    let slots = if params.slots == 1 { "slot" } else { "slots" };
    let days = if params.days == 1 { "day" } else { "days" };
    label(
        &mut text,
        "head",
        "start",
        20.0,
        30.0,
        &format!("{} {slots}, {} {days}", params.slots, params.days),
    );
    legend(&mut text, &strategies);
    for panel in &PANELS {
        draw(&mut text, panel, rows, &strategies);
    }
    put(&mut text, format_args!("</svg>"));
    text
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes whatever is written to it.
    let _ = writeln!(text, "{line}");
}

fn label(text: &mut String, class: &str, anchor: &str, x: f64, y: f64, what: &str) {
    put(
        text,
        format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{what}</text>"
        ),
    );
}

fn rule(text: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    put(
        text,
        format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ),
    );
}

/// The legend stands on the right of the first line.
fn legend(text: &mut String, strategies: &[Strategy]) {
    let mut x = WIDTH - 24.0 - 150.0 * count(strategies.len());
    for strategy in strategies {
        rule(text, &format!("line {strategy}"), (x, 26.0), (x + 34.0, 26.0));
        mark(text, *strategy, (x + 17.0, 26.0));
        label(text, "", "start", x + 42.0, 30.5, strategy.as_str());
        x += 150.0;
    }
}

/// A strategy's mark: square, circle, triangle, diamond.
fn mark(text: &mut String, strategy: Strategy, (x, y): (f64, f64)) {
    let outline = match strategy {
        Strategy::Hold => [(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)].as_slice(),
        Strategy::Release => {
            put(
                text,
                format_args!(
                    "<circle class=\"mark {strategy}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>"
                ),
            );
            return;
        }
        Strategy::PreemptIdle => &[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)],
        Strategy::PreemptLru => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
    };
    let points = outline.iter().map(|(dx, dy)| (x + dx, y + dy));
    put(text, format_args!("<polygon class=\"mark {strategy}\" points=\"{}\"/>", joined(points)));
}

fn joined(points: impl Iterator<Item = (f64, f64)>) -> String {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

fn draw(text: &mut String, panel: &Panel, rows: &[Row], strategies: &[Strategy]) {
    let (left, right) = (panel.left, panel.left + PANEL);
    label(text, "name", "start", left, TOP - 34.0, panel.name);
    label(text, "small", "start", left, TOP - 16.0, panel.unit);
    let highest = rows.iter().map(panel.value).fold(0.0, f64::max);
    let (step, top) = scale(highest);
    let y_of = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top;
    let mut tick = 0.0;
    while tick <= top + step / 2.0 {
        let class = if tick > 0.0 { "grid" } else { "axis" };
        rule(text, class, (left, y_of(tick)), (right, y_of(tick)));
        label(text, "small", "end", left - 8.0, y_of(tick) + 4.0, &format!("{tick}"));
        tick += step;
    }
    let mut users: Vec<u64> = rows.iter().map(|row| row.users).collect();
    users.sort_unstable();
    users.dedup();
    let x_of = |of: u64| {
        let (first, last) = (users.first().copied(), users.last().copied());
        let (first, last) = (first.unwrap_or(of), last.unwrap_or(of));
        let width = PANEL - 2.0 * INSET;
        if last == first {
            return left + PANEL / 2.0;
        }
        left + INSET + width * whole(of - first) / whole(last - first)
    };
    let mut said = f64::NEG_INFINITY;
    for of in &users {
        let x = x_of(*of);
        rule(text, "axis", (x, BOTTOM), (x, BOTTOM + 5.0));
        // Labels that would touch are left out.
        if x - said >= 30.0 {
            label(text, "small", "middle", x, BOTTOM + 20.0, &of.to_string());
            said = x;
        }
    }
    label(text, "small", "middle", left + PANEL / 2.0, BOTTOM + 44.0, "users");
    for strategy in strategies {
        let mut of: Vec<&Row> = rows.iter().filter(|row| row.strategy == *strategy).collect();
        of.sort_by_key(|row| row.users);
        let points = || of.iter().map(|row| (x_of(row.users), y_of((panel.value)(row))));
        put(
            text,
            format_args!("<polyline class=\"line {strategy}\" points=\"{}\"/>", joined(points())),
        );
        for point in points() {
            mark(text, *strategy, point);
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten, and the highest tick: at most six steps up to it.
fn scale(highest: f64) -> (f64, f64) {
    let mut step: f64 = 1.0;
    let mut turn = 0;
    while step * 6.0 < highest {
        step *= if turn % 3 == 1 { 2.5 } else { 2.0 };
        turn += 1;
    }
    (step, step * (highest / step).ceil().max(1.0))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of users are bounded")]
fn whole(number: u64) -> f64 {
    number as f64
}

fn count(number: usize) -> f64 {
    whole(u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::Figures;
    use super::*;

    fn rows(users: &[u64]) -> Vec<Row> {
        let mut rows = Vec::new();
        for users in users {
            for strategy in Strategy::ALL {
                let mean = Figures {
                    wait_p95_seconds: whole(*users) * 30.0,
                    external_hours: whole(*users),
                    ..Figures::default()
                };
                rows.push(Row { users: *users, strategy, mean, deviation: Figures::default() });
            }
        }
        rows
    }

    /// Every tag is closed in its order, every quote is closed, and no figure is not a number.
    fn assert_well_formed(text: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(begin) = rest.find('<') {
            assert!(!rest[..begin].contains(['>', '&']), "{}", &rest[..begin]);
            let end = begin + rest[begin..].find('>').expect("every tag ends");
            let tag = &rest[begin + 1..end];
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            assert!(!tag.contains("NaN") && !tag.contains("inf\""), "{tag}");
            match (tag.strip_prefix('/'), tag.ends_with('/')) {
                (Some(name), _) => assert_eq!(open.pop(), Some(name)),
                (None, false) => open.push(tag.split(' ').next().unwrap_or_default()),
                (None, true) => {}
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_picture_is_well_formed_whatever_it_shows() {
        for users in [&[][..], &[6], &[6, 8, 24], &[1, 2, 3, 10_000]] {
            assert_well_formed(&svg(&rows(users), &Params::default()));
        }
    }

    #[test]
    fn each_strategy_has_a_line_in_both_panels_and_its_name_once() {
        let text = svg(&rows(&[6, 8]), &Params::default());
        for strategy in Strategy::ALL {
            assert_eq!(text.matches(&format!("<polyline class=\"line {strategy}\"")).count(), 2);
            assert_eq!(text.matches(&format!(">{strategy}</text>")).count(), 1);
        }
        for unit in ["seconds", "hours"] {
            assert_eq!(text.matches(&format!(">{unit}</text>")).count(), 1);
        }
        assert_eq!(text.matches(">users</text>").count(), 2);
    }

    #[test]
    fn points_lie_within_their_panel() {
        let text = svg(&rows(&[6, 8, 12, 16, 24]), &Params::default());
        for line in text.lines().filter(|line| line.starts_with("<polyline")) {
            let points = line.split("points=\"").nth(1).and_then(|rest| rest.split('"').next());
            for point in points.unwrap().split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(LEFT.iter().any(|left| (*left..=left + PANEL).contains(&x)), "{point}");
                assert!((TOP..=BOTTOM).contains(&y), "{point}");
            }
        }
    }

    #[test]
    fn scales_have_at_most_six_round_steps_and_cover_all() {
        for highest in [0.0, 0.3, 1.0, 7.0, 99.0, 648.0, 720.0, 12_345.0, 1e9] {
            let (step, top) = scale(highest);
            assert!(top >= highest && top <= step * 6.0, "{highest}: {step} {top}");
            let digits = format!("{step}").replace('0', "");
            assert!(["1", "2", "5"].contains(&digits.as_str()), "{step}");
        }
    }
}
