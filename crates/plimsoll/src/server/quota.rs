//! Where the rungs of the quota ladder are, and what is done about abuse.

use clap::{Args, ValueEnum};
use plimsoll_cell::{AbuseAct, EngineConfig};
use plimsoll_types::{BasisPoints, Millis};

use crate::failure::Failure;

/// A percent in basis points.
const PERCENT_BP: u64 = 100;
/// The warning is taken back only this much below its own share, so that a corrected figure does
/// not warn twice.
const WARNING_SLACK_PERCENT: u64 = 5;

/// Settings of quotas, as `cell` and `up` take them.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuotaFlags {
    /// Percent of a period's budget at which a tenant is warned, 6 to 99
    #[arg(long, value_name = "PERCENT", default_value_t = 80, help_heading = "Quota",
          value_parser = clap::value_parser!(u64).range(6..=99))]
    quota_warn_percent: u64,
    /// Seconds from a used-up budget to pausing what is idle
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Quota")]
    quota_pause_after_seconds: u64,
    /// Seconds without a call and without CPU after which a sandbox is idle to that
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Quota")]
    quota_idle_seconds: u64,
    /// Seconds between two looks for sandboxes that have become idle since, at least 1
    #[arg(long, value_name = "SECONDS", default_value_t = 60, help_heading = "Quota",
          value_parser = clap::value_parser!(u64).range(1..))]
    quota_look_seconds: u64,
    /// Seconds from pausing to announcing a deletion
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, help_heading = "Quota")]
    quota_announce_after_seconds: u64,
    /// Seconds from the delivered announcement to the deletion; less than three days is a trap for
    /// somebody on holiday
    #[arg(long, value_name = "SECONDS", default_value_t = 259_200, help_heading = "Quota")]
    quota_grace_seconds: u64,
    /// A paying tenant's overage is an event each time that it passes another of these percents
    #[arg(long, value_name = "PERCENT", default_value_t = 25, help_heading = "Quota",
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    quota_overage_percent: u64,
    /// What is done about suspected abuse without a payment method, beside saying so
    #[arg(long, value_enum, default_value = "nothing", help_heading = "Quota")]
    abuse: Abuse,
}

/// What is done about suspected abuse.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Abuse {
    /// People look at it
    Nothing,
    /// The tenant starts nothing new
    StopAdmitting,
    /// And everything of it that runs is paused
    Pause,
}

impl QuotaFlags {
    /// Takes the settings over.
    ///
    /// # Errors
    /// When a length is beyond what can be counted.
    pub(crate) fn apply(&self, config: &mut EngineConfig) -> Result<(), Failure> {
        let length = |flag: &str, seconds: u64| {
            let millis = seconds.checked_mul(1000).filter(|millis| *millis <= LONGEST_MILLIS);
            millis.map(Millis).ok_or_else(|| {
                let most = LONGEST_MILLIS / 1000;
                Failure::usage(format!("--{flag} {seconds}: at most {most}"))
            })
        };
        let rule = &mut config.ladder;
        rule.warn_at = BasisPoints(self.quota_warn_percent * PERCENT_BP);
        let clears = self.quota_warn_percent.saturating_sub(WARNING_SLACK_PERCENT);
        rule.warn_clears_below = BasisPoints(clears * PERCENT_BP);
        rule.hibernate_after = length("quota-pause-after-seconds", self.quota_pause_after_seconds)?;
        rule.announce_after =
            length("quota-announce-after-seconds", self.quota_announce_after_seconds)?;
        rule.grace = length("quota-grace-seconds", self.quota_grace_seconds)?;
        rule.overage_step = BasisPoints(self.quota_overage_percent * PERCENT_BP);
        config.hibernate_idle = length("quota-idle-seconds", self.quota_idle_seconds)?;
        config.hibernate_interval = length("quota-look-seconds", self.quota_look_seconds)?;
        config.abuse = match self.abuse {
            Abuse::Nothing => AbuseAct::Nothing,
            Abuse::StopAdmitting => AbuseAct::StopAdmitting,
            Abuse::Pause => AbuseAct::Pause,
        };
        Ok(())
    }
}

/// Longest of these lengths: ten years.
const LONGEST_MILLIS: u64 = 10 * 365 * 24 * 3600 * 1000;
