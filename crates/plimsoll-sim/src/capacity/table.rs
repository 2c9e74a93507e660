//! The model's table: one row for each number of users and each strategy.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::params::within;
use super::{ModelError, ParamError, Params, Run, SEEDS_MAX, Strategy, USERS_MAX, run};

/// The columns, in order, as scripts know them.
pub const COLUMNS: [&str; 9] = [
    "users",
    "strategy",
    "on_pool_percent",
    "external_hours",
    "utilisation_percent",
    "wait_p50_seconds",
    "wait_p95_seconds",
    "preemptions_per_day",
    "interrupted_per_day",
];

/// How many of the columns are measured: all but the first two.
pub const FIGURES: usize = 7;

/// The measured figures of one row, in the order of [`COLUMNS`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Users whose computer is on the pool, of those who have one.
    pub on_pool_percent: f64,
    /// Hours for which computers outside were up.
    pub external_hours: f64,
    /// Slot time used by a session in progress, of all slot time, nights included.
    pub utilisation_percent: f64,
    /// The wait that half of the sessions stay within.
    pub wait_p50_seconds: f64,
    /// The wait that 95 of 100 sessions stay within.
    pub wait_p95_seconds: f64,
    /// Computers paused to make room.
    pub preemptions_per_day: f64,
    /// Sessions whose computer was paused under them.
    pub interrupted_per_day: f64,
}

impl Figures {
    /// The figures of one run.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts and milliseconds far below 2^53")]
    pub fn of(run: &Run, params: &Params) -> Self {
        let days = params.days as f64;
        let slot_time = params.length().0 as f64 * params.slots as f64;
        let percent = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
        Self {
            on_pool_percent: percent(run.on_pool as f64, run.users as f64),
            external_hours: run.external.0 as f64 / 3_600_000.0,
            utilisation_percent: percent(run.used.0 as f64, slot_time),
            wait_p50_seconds: percentile(run, 50),
            wait_p95_seconds: percentile(run, 95),
            preemptions_per_day: run.preemptions as f64 / days,
            interrupted_per_day: run.interrupted as f64 / days,
        }
    }

    /// The figures in the order of [`COLUMNS`].
    #[must_use]
    pub const fn values(&self) -> [f64; FIGURES] {
        [
            self.on_pool_percent,
            self.external_hours,
            self.utilisation_percent,
            self.wait_p50_seconds,
            self.wait_p95_seconds,
            self.preemptions_per_day,
            self.interrupted_per_day,
        ]
    }

    /// Figures from values in that order.
    #[must_use]
    pub const fn from_values(values: [f64; FIGURES]) -> Self {
        let [on_pool, external, utilisation, p50, p95, preemptions, interrupted] = values;
        Self {
            on_pool_percent: on_pool,
            external_hours: external,
            utilisation_percent: utilisation,
            wait_p50_seconds: p50,
            wait_p95_seconds: p95,
            preemptions_per_day: preemptions,
            interrupted_per_day: interrupted,
        }
    }
}

/// The percentile by nearest rank: the smallest wait that so many of a hundred stay within.
#[expect(clippy::cast_precision_loss, reason = "milliseconds far below 2^53")]
fn percentile(run: &Run, percent: usize) -> f64 {
    let rank = (run.waits.len() * percent).div_ceil(100).max(1);
    run.waits.get(rank - 1).map_or(0.0, |wait| wait.0 as f64 / 1000.0)
}

/// One row: so many users under one strategy, over several seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Users.
    pub users: u64,
    /// How the pool is shared.
    pub strategy: Strategy,
    /// The mean over the seeds. Percentiles are taken of each seed, then averaged.
    pub mean: Figures,
    /// The standard deviation between seeds; 0 for a single one.
    pub deviation: Figures,
}

impl Row {
    /// Runs the model once for each seed; `each` is called after each run.
    ///
    /// # Errors
    /// As [`run`].
    pub fn of(
        users: u64,
        strategy: Strategy,
        params: &Params,
        seeds: Seeds,
        mut each: impl FnMut(),
    ) -> Result<Self, ModelError> {
        let mut figures = Vec::new();
        for seed in seeds.iter() {
            figures.push(Figures::of(&run(users, strategy, params, seed)?, params).values());
            each();
        }
        let (mean, deviation) = moments(&figures);
        Ok(Self { users, strategy, mean, deviation })
    }
}

/// Mean and sample standard deviation of each column.
#[expect(clippy::cast_precision_loss, reason = "at most SEEDS_MAX")]
fn moments(figures: &[[f64; FIGURES]]) -> (Figures, Figures) {
    let number = figures.len() as f64;
    let (mut mean, mut deviation) = ([0.0; FIGURES], [0.0; FIGURES]);
    for column in 0..FIGURES {
        let values = || figures.iter().map(|row| row[column]);
        mean[column] = values().sum::<f64>() / number.max(1.0);
        let squares: f64 = values().map(|value| (value - mean[column]).powi(2)).sum();
        deviation[column] = (squares / (number - 1.0).max(1.0)).sqrt();
    }
    (Figures::from_values(mean), Figures::from_values(deviation))
}

/// Rounds for scripts: tenths; hundredths for what is counted by the day.
fn rounded(figures: &Figures) -> [f64; FIGURES] {
    let mut values = figures.values();
    for (column, value) in values.iter_mut().enumerate() {
        let steps = if column < FIGURES - 2 { 10.0 } else { 100.0 };
        *value = (*value * steps).round() / steps;
    }
    values
}

impl Serialize for Row {
    /// An object whose keys are [`COLUMNS`] and nothing else; tenths, hundredths for what is
    /// counted by the day.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [users, strategy, figures @ ..] = COLUMNS;
        let mut row = serializer.serialize_struct("Row", COLUMNS.len())?;
        row.serialize_field(users, &self.users)?;
        row.serialize_field(strategy, &self.strategy)?;
        for (name, value) in figures.into_iter().zip(rounded(&self.mean)) {
            row.serialize_field(name, &value)?;
        }
        row.end()
    }
}

/// The table as comma-separated values under a line of [`COLUMNS`].
#[must_use]
pub fn csv(rows: &[Row]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for row in rows {
        text.push_str(&format!("{},{}", row.users, row.strategy));
        for value in rounded(&row.mean) {
            text.push_str(&format!(",{value}"));
        }
        text.push('\n');
    }
    text
}

/// Seeds in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The first one.
    pub first: u64,
    /// How many.
    pub number: u64,
}

impl Seeds {
    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        (0..self.number).map(move |at| self.first.wrapping_add(at))
    }

    /// Holds their number against its bounds.
    ///
    /// # Errors
    /// When it is out of them.
    pub fn check(self) -> Result<(), ParamError> {
        within("seeds", self.number, 1, SEEDS_MAX)
    }
}

impl Default for Seeds {
    /// Seeds 1 to 5.
    fn default() -> Self {
        Self { first: 1, number: 5 }
    }
}

/// Which rows to compute.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Numbers of users.
    pub users: Vec<u64>,
    /// Strategies.
    pub strategies: Vec<Strategy>,
    /// Everything else.
    pub params: Params,
    /// Seeds; the same ones for each row.
    pub seeds: Seeds,
}

impl Default for Study {
    /// 6, 8, 12, 16 and 24 users under every strategy.
    fn default() -> Self {
        Self {
            users: vec![6, 8, 12, 16, 24],
            strategies: Strategy::ALL.to_vec(),
            params: Params::default(),
            seeds: Seeds::default(),
        }
    }
}

/// Most rows of one table: beyond it nobody reads, and a slip would run for hours.
const ROWS_MAX: usize = 1_000;

impl Study {
    /// Holds everything against its bounds.
    ///
    /// # Errors
    /// Names the first parameter that is out of them.
    pub fn check(&self) -> Result<(), ParamError> {
        self.params.check()?;
        self.seeds.check()?;
        for users in &self.users {
            within("users", *users, 1, USERS_MAX)?;
        }
        let rows = self.users.len().saturating_mul(self.strategies.len());
        if (1..=ROWS_MAX).contains(&rows) {
            return Ok(());
        }
        let given = format!("{} values for {} strategies", self.users.len(), self.strategies.len());
        let bound = format!("1 to {ROWS_MAX} rows, one for each value and strategy");
        Err(ParamError { field: "users", given, bound })
    }

    /// How many runs the table takes.
    #[must_use]
    pub fn runs(&self) -> u64 {
        let rows = self.users.len().saturating_mul(self.strategies.len());
        u64::try_from(rows).unwrap_or(u64::MAX).saturating_mul(self.seeds.number)
    }

    /// The rows, by users, then by strategy, as they were named; `each` is called after each run.
    ///
    /// # Errors
    /// As [`run`].
    ///
    /// ```
    /// use plimsoll_sim::capacity::{Seeds, Strategy, Study};
    ///
    /// let study = Study {
    ///     users: vec![12],
    ///     strategies: vec![Strategy::Hold, Strategy::Release],
    ///     seeds: Seeds { first: 1, number: 2 },
    ///     ..Study::default()
    /// };
    /// let rows = study.rows(|| {})?;
    /// assert!(rows[1].mean.on_pool_percent > rows[0].mean.on_pool_percent);
    /// assert!(rows[1].mean.wait_p95_seconds > rows[0].mean.wait_p95_seconds);
    /// # Ok::<(), plimsoll_sim::capacity::ModelError>(())
    /// ```
    pub fn rows(&self, mut each: impl FnMut()) -> Result<Vec<Row>, ModelError> {
        let mut rows = Vec::new();
        for users in &self.users {
            for strategy in &self.strategies {
                rows.push(Row::of(*users, *strategy, &self.params, self.seeds, &mut each)?);
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_types::Millis;

    use super::*;

    fn waits(seconds: &[u64]) -> Run {
        let waits = seconds.iter().map(|wait| Millis::from_seconds(*wait)).collect();
        Run { waits, ..Run::default() }
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&waits(&hundred), 95).to_bits(), 95_f64.to_bits());
        assert_eq!(percentile(&waits(&hundred), 50).to_bits(), 50_f64.to_bits());
        assert_eq!(percentile(&waits(&[7]), 95).to_bits(), 7_f64.to_bits());
        assert_eq!(percentile(&waits(&[1, 2, 3]), 50).to_bits(), 2_f64.to_bits());
        assert_eq!(percentile(&waits(&[]), 50).to_bits(), 0_f64.to_bits());
    }

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let (mean, deviation) = moments(&[[1.0; FIGURES], [2.0; FIGURES], [6.0; FIGURES]]);
        assert!((mean.external_hours - 3.0).abs() < 1e-12);
        assert!((deviation.external_hours - 7.0_f64.sqrt()).abs() < 1e-12);
        let (mean, deviation) = moments(&[[4.0; FIGURES]]);
        assert_eq!((mean.values(), deviation.values()), ([4.0; FIGURES], [0.0; FIGURES]));
    }

    #[test]
    fn figures_are_in_their_units() {
        let run = Run {
            users: 8,
            on_pool: 6,
            external: Millis::from_seconds(7_200),
            used: Millis::from_seconds(5 * 86_400),
            preemptions: 5,
            interrupted: 1,
            ..waits(&[2, 10])
        };
        let values = Figures::of(&run, &Params::default()).values();
        assert_eq!(values, [75.0, 2.0, 25.0, 2.0, 10.0, 1.0, 0.2]);
    }

    #[test]
    fn rows_out_of_bounds_are_named() {
        let check = |study: Study| study.check().unwrap_err().to_string();
        let study = Study::default;
        assert_eq!(check(Study { users: vec![0], ..study() }), "users is 0; it must be 1 to 10000");
        assert_eq!(
            check(Study { seeds: Seeds { first: 1, number: 0 }, ..study() }),
            "seeds is 0; it must be 1 to 10000"
        );
        let many = Study { users: vec![1; 251], ..study() };
        assert!(check(many).starts_with("users is 251 values for 4 strategies; it must be 1 to"));
        assert!(check(Study { users: vec![], ..study() }).contains("0 values"));
        assert_eq!(study().check(), Ok(()));
        assert_eq!(study().runs(), 100);
    }
}
