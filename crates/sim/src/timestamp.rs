//! Times as traces write them.

use hypha_model::{Time, rfc3339};

/// `YYYY-MM-DD HH:MM:SS[.decimals][Z]`, as UTC. Digits beyond microseconds are cut off.
pub(crate) fn parse_timestamp(text: &str) -> Option<Time> {
    rfc3339::parse(&format!("{}Z", text.strip_suffix('Z').unwrap_or(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_convert_to_unix_time() {
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
