//! `strftime_now`: inserts the current date into a prompt. The time zone is UTC, so all machines
//! render the same prompts.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

pub fn strftime_now(format: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, now)
}

/// Formats seconds since 1970 like C's `strftime`. Unknown directives are copied unchanged.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day) = civil(days);
    // 1970-01-01 was a Thursday
    let weekday = DAYS.get((days + 4) as usize % 7).copied().unwrap_or_default();
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let short = |name: &str| name.get(..3).unwrap_or_default().to_owned();
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let of_year = days - days_before(year);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let two = |n: u64| if padded { format!("{n:02}") } else { n.to_string() };
        let part = match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('H') => two(hour),
            Some('I') => two(hour12),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => short(month_name),
            Some('A') => weekday.to_owned(),
            Some('a') => short(weekday),
            Some('j') => format!("{:03}", of_year + 1),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some('f') => "000000".to_owned(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('C') => two(year / 100),
            Some('k') => format!("{hour:2}"),
            Some('l') => format!("{hour12:2}"),
            Some('P') => if hour < 12 { "am" } else { "pm" }.to_owned(),
            Some('s') => seconds.to_string(),
            Some('w') => ((days + 4) % 7).to_string(),
            Some('u') => ((days + 3) % 7 + 1).to_string(),
            // Weeks from the first Sunday or Monday on.
            Some('U') => two((of_year + 7 - (days + 4) % 7) / 7),
            Some('W') => two((of_year + 7 - (days + 3) % 7) / 7),
            Some('G') => iso_week(days).0.to_string(),
            Some('g') => two(iso_week(days).0 % 100),
            Some('V') => two(iso_week(days).1),
            Some('D' | 'x') => strftime("%m/%d/%y", seconds),
            Some('R') => strftime("%H:%M", seconds),
            Some('X') => strftime("%H:%M:%S", seconds),
            Some('r') => strftime("%I:%M:%S %p", seconds),
            Some('c') => strftime("%a %b %e %H:%M:%S %Y", seconds),
            Some(other) => format!("%{}{other}", if padded { "" } else { "-" }),
            None => format!("%{}", if padded { "" } else { "-" }),
        };
        out.push_str(&part);
    }
    out
}

/// ISO 8601 year and week of a day. Weeks start on Monday and belong to the year of their Thursday.
fn iso_week(days: u64) -> (u64, u64) {
    let thursday = days + 3 - (days + 3) % 7;
    let (year, ..) = civil(thursday);
    (year, (thursday - days_before(year)) / 7 + 1)
}

/// Days from 1970-01-01 to the first day of a year.
fn days_before(year: u64) -> u64 {
    let y = year - 1;
    365 * (year - 1970) + (y / 4 - y / 100 + y / 400) - (1969 / 4 - 1969 / 100 + 1969 / 400)
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut day = days - days_before(year);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if day < length {
            return (year, month, day + 1);
        }
        day -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        let at = |seconds| strftime("%A %d %B %Y %H:%M:%S %j", seconds);
        assert_eq!(at(0), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(at(951_782_400), "Tuesday 29 February 2000 00:00:00 060");
        assert_eq!(at(1_795_231_899), "Saturday 21 November 2026 03:31:39 325");
        assert_eq!(at(4_107_542_399), "Sunday 28 February 2100 23:59:59 059");
        assert_eq!(at(4_107_542_400), "Monday 01 March 2100 00:00:00 060");
        assert_eq!(strftime("%-d %b %y, %-I %p 100%%", 46_800), "1 Jan 70, 1 PM 100%");
    }

    #[test]
    fn weeks_match_c_and_unknown_directives_stay() {
        let at = |seconds| strftime("%U %W %V %G %u %w %D %R", seconds);
        assert_eq!(at(1_772_636_767), "09 09 10 2026 3 3 03/04/26 15:06");
        assert_eq!(at(1_609_459_200), "00 00 53 2020 5 5 01/01/21 00:00");
        assert_eq!(strftime("%c|%f|%k|%-Q %Q %", 0), "Thu Jan  1 00:00:00 1970|000000| 0|%-Q %Q %");
    }
}
