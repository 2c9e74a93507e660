//! The machine's own figures: memory, CPU, pressure, uptime.

use std::path::{Path, PathBuf};

use plimsoll_types::{BasisPoints, Mib, MilliCpu};

use super::{Reading, Unknown};

/// Memory of the machine in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemAvailable`: what new work can have without swapping, by the kernel's own estimate.
    pub available_bytes: u64,
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// When `MemTotal` or `MemAvailable` is missing, is no number of kB, or the two contradict each
/// other.
pub fn parse_meminfo(text: &str) -> Reading<MachineMemory> {
    let field = |name: &'static str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':')))
            .ok_or_else(|| Unknown::new("memory", format_args!("no {name} line")))?;
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|word| word.parse::<u64>().ok());
        match (number.and_then(|kib| kib.checked_mul(1024)), words.next()) {
            (Some(bytes), Some("kB")) => Ok(bytes),
            _ => Err(Unknown::new("memory", format_args!("{name} is no number of kB"))),
        }
    };
    let memory =
        MachineMemory { total_bytes: field("MemTotal")?, available_bytes: field("MemAvailable")? };
    if memory.total_bytes == 0 {
        return Err(Unknown::new("memory", "MemTotal is zero"));
    }
    if memory.available_bytes > memory.total_bytes {
        return Err(Unknown::new("memory", "MemAvailable exceeds MemTotal"));
    }
    Ok(memory)
}

/// Memory pressure as the kernel reports it (PSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Share of the last 10 s in which some task waited for memory.
    pub some_avg10: BasisPoints,
    /// Share of the last 10 s in which every task that could run waited for memory.
    pub full_avg10: BasisPoints,
}

/// Reads `/proc/pressure/memory` or a control group's `memory.pressure`.
///
/// # Errors
/// When either line or its `avg10` is missing or is no percentage from 0 to 100. A `NaN` is no
/// percentage: it must not pass for "no pressure".
pub fn parse_pressure(text: &str) -> Reading<Pressure> {
    let avg10 = |kind: &'static str| {
        text.lines()
            .filter_map(|line| line.strip_prefix(kind))
            .flat_map(str::split_ascii_whitespace)
            .find_map(|word| word.strip_prefix("avg10="))
            .and_then(percent_to_basis_points)
            .ok_or_else(|| Unknown::new("pressure", format_args!("no avg10 on a {kind:?} line")))
    };
    Ok(Pressure { some_avg10: avg10("some ")?, full_avg10: avg10("full ")? })
}

/// `12.34` as 1234 basis points; digits beyond the second decimal are cut off.
fn percent_to_basis_points(text: &str) -> Option<BasisPoints> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let hundredths = fraction
        .bytes()
        .chain([b'0', b'0'])
        .take(2)
        .fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'));
    let bp = whole.checked_mul(100)?.checked_add(hundredths)?;
    (bp <= BasisPoints::ONE.get()).then_some(BasisPoints(bp))
}

/// CPU time of all processors since boot, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTicks {
    /// Processors that are online.
    pub cpus: u64,
    /// Ticks spent working.
    pub busy: u64,
    /// Ticks in all, idle ones and waits for I/O included.
    pub total: u64,
}

/// Reads `/proc/stat`.
///
/// Guest time is part of user time already and is not added again.
///
/// # Errors
/// When the summary line is missing or malformed, or no processor is listed.
pub fn parse_cpu_ticks(text: &str) -> Reading<CpuTicks> {
    let unknown = |why: &str| Unknown::new("cpu", why);
    let mut cpus = 0;
    let mut summary = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("cpu ") {
            summary = Some(rest);
        } else if line
            .strip_prefix("cpu")
            .is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()))
        {
            cpus += 1;
        }
    }
    let summary = summary.ok_or_else(|| unknown("no cpu line"))?;
    // user, nice, system, idle, iowait, irq, softirq, steal; the last three since Linux 2.6.
    let ticks: Vec<u64> = summary
        .split_ascii_whitespace()
        .take(8)
        .map(|word| word.parse().map_err(|_| unknown("a count is no number")))
        .collect::<Result<_, _>>()?;
    if ticks.len() < 5 {
        return Err(unknown("too few counts on the cpu line"));
    }
    if cpus == 0 {
        return Err(unknown("no processor listed"));
    }
    let total = ticks
        .iter()
        .try_fold(0_u64, |sum, tick| sum.checked_add(*tick))
        .ok_or_else(|| unknown("counts do not fit in 64 bits"))?;
    Ok(CpuTicks { cpus, busy: total - ticks[3] - ticks[4], total })
}

/// CPU in use between two samples, rounded to the nearest thousandth of a core.
///
/// # Errors
/// When no time passed between the samples, or a count fell (some kernels let idle time fall by
/// a tick, and processors may go offline).
pub fn cpu_used(earlier: CpuTicks, later: CpuTicks) -> Reading<MilliCpu> {
    let total = later.total.checked_sub(earlier.total).filter(|ticks| *ticks > 0);
    let busy = later.busy.checked_sub(earlier.busy);
    let (Some(total), Some(busy)) = (total, busy) else {
        return Err(Unknown::new("cpu used", "the counters did not advance between two samples"));
    };
    let millis = u128::from(busy.min(total)) * u128::from(later.cpus) * 1000;
    let total = u128::from(total);
    let rounded = (millis + total / 2) / total;
    Ok(MilliCpu(u64::try_from(rounded).unwrap_or(u64::MAX)))
}

/// Reads `/proc/uptime`.
///
/// # Errors
/// When the first word is no number of seconds.
pub fn parse_uptime_millis(text: &str) -> Reading<u64> {
    let unknown = || Unknown::new("uptime", "the first word is no number of seconds");
    let word = text.split_ascii_whitespace().next().ok_or_else(unknown)?;
    let (seconds, fraction) = word.split_once('.').unwrap_or((word, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !digits(seconds) || !digits(fraction) {
        return Err(unknown());
    }
    let millis = fraction
        .bytes()
        .chain([b'0'; 3])
        .take(3)
        .fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'));
    seconds
        .parse::<u64>()
        .ok()
        .and_then(|seconds| seconds.checked_mul(1000)?.checked_add(millis))
        .ok_or_else(unknown)
}

fn read(path: &Path, what: &'static str) -> Reading<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Unknown::new(what, format_args!("{}: {error}", path.display())))
}

/// Milliseconds since the machine's boot: the clock by which deadlines of commands are judged.
///
/// # Errors
/// When `/proc/uptime` cannot be read or makes no sense.
pub fn uptime_millis() -> Reading<u64> {
    parse_uptime_millis(&read(Path::new("/proc/uptime"), "uptime")?)
}

/// The kernel's id of this boot: differs after every boot of the machine, is the same over
/// restarts of the agent.
///
/// # Errors
/// When the kernel does not give one.
pub fn boot_id() -> Reading<String> {
    let text = read(Path::new("/proc/sys/kernel/random/boot_id"), "boot id")?;
    let id = text.trim();
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        return Err(Unknown::new("boot id", "not of hexadecimal digits"));
    }
    Ok(id.to_owned())
}

/// One look at the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSample {
    /// All memory.
    pub memory_total: Reading<Mib>,
    /// Memory that new work can have.
    pub memory_available: Reading<Mib>,
    /// All CPU.
    pub cpu_total: Reading<MilliCpu>,
    /// CPU in use since the sample before; unknown in the first one.
    pub cpu_used: Reading<MilliCpu>,
    /// Memory pressure.
    pub pressure: Reading<Pressure>,
    /// Milliseconds since the machine's boot.
    pub uptime_millis: Reading<u64>,
}

impl MachineSample {
    /// Memory in use, rounded up: total less available.
    ///
    /// # Errors
    /// When either is unknown.
    pub fn memory_used(&self) -> Reading<Mib> {
        Ok(self.memory_total.clone()?.saturating_sub(self.memory_available.clone()?))
    }
}

/// Takes samples of the machine; keeps the sample before, since CPU use is a difference.
#[derive(Debug)]
pub struct MachineProbe {
    proc: PathBuf,
    earlier: Option<CpuTicks>,
}

impl Default for MachineProbe {
    fn default() -> Self {
        Self::new()
    }
}

impl MachineProbe {
    /// A probe of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::at("/proc")
    }

    /// A probe of a `proc` file system mounted elsewhere.
    #[must_use]
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), earlier: None }
    }

    /// Looks now. Reads four small files of `/proc`; takes well below a millisecond.
    pub fn sample(&mut self) -> MachineSample {
        let memory =
            read(&self.proc.join("meminfo"), "memory").and_then(|text| parse_meminfo(&text));
        let ticks = read(&self.proc.join("stat"), "cpu").and_then(|text| parse_cpu_ticks(&text));
        let cpu_used = match (&ticks, self.earlier) {
            (Ok(later), Some(earlier)) => cpu_used(earlier, *later),
            (Ok(_), None) => Err(Unknown::new("cpu used", "needs a second sample")),
            (Err(unknown), _) => Err(unknown.clone()),
        };
        self.earlier = ticks.as_ref().ok().copied();
        MachineSample {
            memory_total: memory.clone().map(|memory| Mib::from_bytes_floor(memory.total_bytes)),
            memory_available: memory.map(|memory| Mib::from_bytes_floor(memory.available_bytes)),
            cpu_total: ticks.map(|ticks| MilliCpu(ticks.cpus.saturating_mul(1000))),
            cpu_used,
            pressure: read(&self.proc.join("pressure/memory"), "pressure")
                .and_then(|text| parse_pressure(&text)),
            uptime_millis: read(&self.proc.join("uptime"), "uptime")
                .and_then(|text| parse_uptime_millis(&text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_takes_total_and_available() {
        let text = "MemTotal:       24684084 kB\nMemFree: 1 kB\nMemAvailable:   24269824 kB\n";
        let memory = parse_meminfo(text).unwrap();
        assert_eq!(memory.total_bytes, 24_684_084 * 1024);
        assert_eq!(memory.available_bytes, 24_269_824 * 1024);
    }

    #[test]
    fn meminfo_never_reads_garbage_as_a_number() {
        for text in [
            "",
            "MemTotal:\nMemAvailable:\n",
            "MemTotal: 5 kB\n",
            "MemTotal: x kB\nMemAvailable: 1 kB\n",
            "MemTotal: -5 kB\nMemAvailable: 1 kB\n",
            "MemTotal: 5 MB\nMemAvailable: 1 kB\n",
            "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
            "MemTotal: 5 kB\nMemAvailable: 6 kB\n",
            "MemTotal: 99999999999999999999 kB\nMemAvailable: 1 kB\n",
            "MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n",
            "\u{0}\u{ffff}é:\u{0}",
        ] {
            assert!(parse_meminfo(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn pressure_is_exact_in_basis_points() {
        let text = "some avg10=4.50 avg60=0.91 avg300=0.00 total=681245\n\
                    full avg10=100.00 avg60=0.12 avg300=0.00 total=391926\n";
        let pressure = parse_pressure(text).unwrap();
        assert_eq!(pressure.some_avg10, BasisPoints(450));
        assert_eq!(pressure.full_avg10, BasisPoints(10_000));
    }

    #[test]
    fn no_number_is_no_absence_of_pressure() {
        for value in ["NaN", "nan", "inf", "-1.00", "", ".", "1.2.3", "100.01", "0x1", "1e1", "٣"]
        {
            let text = format!("some avg10={value} avg60=0\nfull avg10=0.00 avg60=0\n");
            assert!(parse_pressure(&text).is_err(), "{value:?}");
        }
        for text in ["", "some", "some ", "full", "some avg60=1.00\nfull avg10=1.00", "avg10=1.00"]
        {
            assert!(parse_pressure(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn cpu_use_is_the_difference_of_two_samples() {
        let first = parse_cpu_ticks("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1\ncpu1 1\nintr 5\n");
        let first = first.unwrap();
        assert_eq!(first, CpuTicks { cpus: 2, busy: 150, total: 1000 });
        let later = CpuTicks { cpus: 2, busy: 200, total: 1200 };
        assert_eq!(cpu_used(first, later), Ok(MilliCpu(500)));
        assert!(cpu_used(first, first).is_err());
        assert!(cpu_used(later, first).is_err());
    }

    #[test]
    fn cpu_counts_that_make_no_sense_are_unknown() {
        for text in [
            "",
            "cpu \n",
            "cpu 1 2 3 4\ncpu0 1\n",
            "cpu a b c d e\ncpu0 1\n",
            "cpu 1 2 3 4 5\n",
            "cpu 18446744073709551615 1 1 1 1\ncpu0 1\n",
            "cpufreq\ncpu 1 1 1 1 1\n",
        ] {
            assert!(parse_cpu_ticks(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn uptime_is_exact_in_milliseconds() {
        assert_eq!(parse_uptime_millis("1234.56 99.0\n"), Ok(1_234_560));
        assert_eq!(parse_uptime_millis("7"), Ok(7000));
        for text in ["", " ", "x", "-1.0", "NaN", "1.x", "99999999999999999999.0", ".5"] {
            assert!(parse_uptime_millis(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_missing_proc_is_unknown_and_never_zero() {
        let folder = tempfile::tempdir().unwrap();
        let sample = MachineProbe::at(folder.path()).sample();
        assert!(sample.memory_total.is_err() && sample.memory_used().is_err());
        assert!(sample.cpu_total.is_err() && sample.cpu_used.is_err());
        assert!(sample.pressure.is_err() && sample.uptime_millis.is_err());
    }

    #[test]
    fn this_machine_can_be_read() {
        let mut probe = MachineProbe::new();
        let sample = probe.sample();
        let total = sample.memory_total.clone().unwrap();
        assert!(total > Mib(16) && sample.memory_used().unwrap() < total);
        assert!(sample.cpu_total.unwrap() >= MilliCpu(1000));
        assert!(sample.cpu_used.is_err(), "one sample holds no difference");
        assert!(sample.uptime_millis.unwrap() > 0);
        assert_eq!(boot_id(), boot_id());
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC*", line in "(cpu|some|full|MemTotal:|[0-9. =a-z:]|\n){0,40}") {
            for text in [&text, &line] {
                let _ = parse_meminfo(text);
                let _ = parse_pressure(text);
                let _ = parse_cpu_ticks(text);
                let _ = parse_uptime_millis(text);
            }
        }
    }
}
