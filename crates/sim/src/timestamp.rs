//! Times as traces write them, without a calendar library.

use hypha_model::Time;

/// `YYYY-MM-DD HH:MM:SS[.decimals][Z]`, as UTC. Decimals after the microsecond are cut off.
pub(crate) fn parse_timestamp(text: &str) -> Option<Time> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (whole, decimals) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, "0"),
    };
    let whole = whole.as_bytes();
    let marks: [(usize, &[u8]); 5] = [(4, b"-"), (7, b"-"), (10, b" T"), (13, b":"), (16, b":")];
    if whole.len() != 19 || marks.iter().any(|(at, marks)| !marks.contains(&whole[*at])) {
        return None;
    }
    let number = |from: usize, to: usize| {
        let digits = &whole[from..to];
        let all_digits = digits.iter().all(u8::is_ascii_digit);
        all_digits.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
    };
    let days = days_since_epoch(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 59 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let padded = decimals.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = padded.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(Time::from_micros(seconds * 1_000_000 + micros))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; `None` if there is no such date, or before.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if leap { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month.checked_sub(1)?).ok()?;
    let length = *months.get(month)?;
    if year < 1970 || day == 0 || day > length {
        return None;
    }
    let leap_days_before = |year: u64| year / 4 - year / 100 + year / 400;
    let leap_days = leap_days_before(year - 1) - leap_days_before(1969);
    Some((year - 1970) * 365 + leap_days + months[..month].iter().sum::<u64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendars_are_right() {
        let micros = |text| parse_timestamp(text).map(Time::as_micros);
        // From `date -u -d '…' +%s`.
        assert_eq!(micros("1970-01-01 00:00:00"), Some(0));
        assert_eq!(micros("2000-02-29 12:00:00"), Some(951_825_600_000_000));
        assert_eq!(micros("2023-11-16 18:17:03.97"), Some(1_700_158_623_970_000));
        assert_eq!(micros("2100-03-01 00:00:00"), Some(4_107_542_400_000_000));
        assert_eq!(micros("2400-02-29 00:00:00"), Some(13_574_563_200_000_000));
        for wrong in [
            "2100-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-00-01 00:00:00",
            "2023-04-31 00:00:00",
            "2023-04-00 00:00:00",
            "1969-12-31 23:59:59",
            "2023-11-16 24:00:00",
            "2023-11-16 18:60:00",
            "2023-11-16 18:00:60",
            "2023-11-16 18:00:00.",
            "2023-11-16 18:00:00.1x",
            "2023-11-16 18:00",
            "2023-11-1é 18:00:0",
            "20+3-11-16 18:00:00",
            "2023/11/16 18:00:00",
            "",
        ] {
            assert_eq!(micros(wrong), None, "{wrong:?}");
        }
    }
}
