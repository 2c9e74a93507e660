//! The comparison in `docs/capacity-model.md`: what it says is what the model does.

use std::fmt::Write as _;
use std::path::PathBuf;

use plimsoll_sim::capacity::{FIGURES, Row, Seeds, Study};

use super::{published, table};

/// Seeds behind the means and deviations of the document.
const SEEDS: u64 = 400;

/// Seeds of the figure beside them, as many as the published table has.
const FEW: u64 = 5;

/// How many standard deviations of a mean over [`FEW`] seeds a published figure may be away.
const FAR: f64 = 2.5;

const BEGIN: &str = "<!-- comparison: begin -->\n";
const END: &str = "<!-- comparison: end -->\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/capacity-model.md")
}

/// One cell of the comparison.
struct Cell {
    published: f64,
    few: f64,
    mean: f64,
    /// Of a mean over [`FEW`] seeds.
    deviation: f64,
}

impl Cell {
    /// By how many deviations the published figure is away from one of ours, its rounding allowed
    /// for.
    fn away(&self, ours: f64, column: usize) -> f64 {
        let off = (self.published - ours).abs() - published::ROUNDING[column];
        if off <= 0.0 { 0.0 } else { off / self.deviation }
    }
}

fn cells(few: &Row, many: &Row, published: &[f64; FIGURES]) -> [Cell; FIGURES] {
    let (few, mean) = (few.mean.values(), many.mean.values());
    let deviation = many.deviation.values().map(|of_one| of_one / 5_f64.sqrt());
    std::array::from_fn(|column| Cell {
        published: published[column],
        few: few[column],
        mean: mean[column],
        deviation: deviation[column],
    })
}

fn places(column: usize) -> usize {
    usize::from(column >= FIGURES - 2)
}

/// The comparison as Markdown: each cell is the published figure, then ours.
fn markdown(few: &[Row], many: &[Row]) -> String {
    let mut text = String::from(
        "| users | strategy | on the pool, % | external, h | utilisation, % | wait p50, s | \
         wait p95, s | preempted / day | interrupted / day |\n|--:|:--|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for (((users, strategy, published), few), many) in published::rows().zip(few).zip(many) {
        assert_eq!((few.users, few.strategy), (users, strategy));
        assert_eq!((many.users, many.strategy), (users, strategy));
        write!(text, "| {users} | {strategy} |").unwrap();
        for (column, cell) in cells(few, many, &published).iter().enumerate() {
            let places = places(column);
            let fine = places + 1;
            write!(
                text,
                " {:.places$}; {:.fine$}; {:.fine$} ± {:.fine$} |",
                cell.published, cell.few, cell.mean, cell.deviation
            )
            .unwrap();
        }
        text.push('\n');
    }
    text
}

/// The cells of the document's table, with its own rounding.
fn written() -> Vec<[Cell; FIGURES]> {
    let text = std::fs::read_to_string(path()).expect("the document is in the repository");
    let table = text.split(BEGIN).nth(1).and_then(|rest| rest.split(END).next());
    let table = table.expect("the document holds the comparison between its marks");
    let rows = table.lines().skip(2).map(|line| {
        let cells: Vec<Cell> = line
            .split('|')
            .skip(3)
            .filter(|cell| !cell.trim().is_empty())
            .map(|cell| {
                let mut numbers =
                    cell.split([';', '±']).map(|number| number.trim().parse().expect("a number"));
                let mut next = || numbers.next().expect("four numbers");
                Cell { published: next(), few: next(), mean: next(), deviation: next() }
            })
            .collect();
        cells.try_into().unwrap_or_else(|_| panic!("{FIGURES} cells: {line}"))
    });
    rows.collect()
}

#[test]
fn every_published_figure_is_near() {
    let rows = written();
    assert_eq!(rows.len(), published::ROWS.len());
    for ((users, strategy, published), cells) in published::rows().zip(&rows) {
        for (column, cell) in cells.iter().enumerate() {
            assert_eq!(cell.published, published[column], "{users} {strategy} {column}");
            for ours in [cell.mean, cell.few] {
                let away = cell.away(ours, column);
                assert!(away <= FAR, "{users} {strategy}, column {column}: {away} deviations");
            }
        }
    }
}

#[test]
fn the_document_says_what_the_model_does() {
    for (row, written) in table().iter().zip(written()) {
        for (column, value) in row.mean.values().into_iter().enumerate() {
            let said = written[column].few;
            let step = 0.1_f64.powi(i32::try_from(places(column) + 1).unwrap());
            assert!(
                (said - value).abs() <= step * 0.51,
                "{} {}, column {column}: {value}, the document says {said}",
                row.users,
                row.strategy
            );
        }
    }
}

#[test]
#[ignore = "a minute of the release build, in which `./test` runs it; writes what has changed"]
fn the_comparison_is_up_to_date() {
    let of = |number| {
        let seeds = Seeds { first: 1, number };
        Study { seeds, ..Study::default() }.rows(|| {}).unwrap()
    };
    let table = markdown(&of(FEW), &of(SEEDS));
    let text = std::fs::read_to_string(path()).expect("the document is in the repository");
    let (head, rest) = text.split_once(BEGIN).expect("its begin is marked");
    let (old, tail) = rest.split_once(END).expect("its end is marked");
    if old != table {
        std::fs::write(path(), format!("{head}{BEGIN}{table}{END}{tail}")).expect("written");
        panic!("the comparison has changed and was written anew: look at the difference");
    }
}
