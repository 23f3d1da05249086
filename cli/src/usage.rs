//! `trireme usage`: what owners of keys have used, from a gateway's document at `/v2/trireme/usage`, with prices.

use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use trireme_runtime::service;

use crate::client::{Client, ServerArgs};
use crate::output::write_out;
use crate::style::{self, cell, colours, table};

/// The path of the document.
const PATH: &str = "/v2/trireme/usage";

/// Tokens that a price is for.
const PRICED_TOKENS: f64 = 1e6;

/// Digits of a cost behind the point.
const COST_DIGITS: usize = 6;

/// The columns of FOCUS, the FinOps Open Cost and Usage Specification, and our own, which begin with `x_`.
const COLUMNS: [&str; 22] = [
    "BillingCurrency",
    "ChargeCategory",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ServiceCategory",
    "ServiceName",
    "SubAccountId",
    "ResourceId",
    "ResourceType",
    "ConsumedQuantity",
    "ConsumedUnit",
    "PricingQuantity",
    "PricingUnit",
    "ListUnitPrice",
    "BilledCost",
    "EffectiveCost",
    "x_Lane",
    "x_Requests",
    "x_FailedRequests",
    "x_CachedRequests",
    "x_Rows",
    "x_ModelSeconds",
];

/// Flags of `trireme usage`.
#[derive(Args)]
pub struct UsageArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// First moment, such as 2026-11-01 or 2026-11-01T08:00:00Z, from the beginning of its hour on; today without it, by UTC
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Last moment, to the end of its hour; now without it. A day stands for its beginning, so it is not included
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// Pieces of time: hour, day or total
    #[arg(long, value_name = "PIECE", default_value = "day", value_parser = ["hour", "day", "total"])]
    by: String,

    /// The usage of this owner alone; asked with an administrator's key
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Price of a million tokens of a model, for the cost; may be given several times, the model * is every other one
    #[arg(long = "price", value_name = "MODEL=PER_MILLION")]
    prices: Vec<Price>,

    /// Currency of the prices, for --csv
    #[arg(long, value_name = "CODE", default_value = "USD")]
    currency: String,

    /// Print the gateway's document as it is
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV with the columns of FOCUS, and our own, which begin with x_
    #[arg(long)]
    csv: bool,
}

/// The price of a million tokens of a model.
#[derive(Clone, Debug, PartialEq)]
struct Price {
    model: String,
    per_million: f64,
}

// === impl Price ===

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = text.rsplit_once('=').and_then(|(model, price)| Some((model, price.parse::<f64>().ok()?)));
        match read.filter(|(model, price)| !model.is_empty() && price.is_finite() && *price >= 0.0) {
            Some((model, per_million)) => Ok(Price { model: model.to_owned(), per_million }),
            None => Err("expected MODEL=PER_MILLION, such as minilm=0.02".to_owned()),
        }
    }
}

/// Asks and prints.
pub fn run(args: &UsageArgs) -> ExitCode {
    match show(args) {
        Ok(text) => write_out(text.as_bytes()),
        Err(error) => service::fail(&error),
    }
}

fn show(args: &UsageArgs) -> anyhow::Result<String> {
    let asked = [("from", &args.from), ("until", &args.until), ("by", &Some(args.by.clone())), ("owner", &args.owner)];
    let given = asked.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let query = given.map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    let path = format!("{PATH}?{}", query.collect::<Vec<_>>().join("&"));
    let document = Client::new(&args.server)?
        .get(&path)
        .context("the server has given no usage, expected a gateway of this release or a later one")?;
    if args.json {
        return Ok(format!("{}\n", style::harmless_json(&document)));
    }
    let lines = document["usage"].as_array().context("the server's document has no 'usage', expected a list")?;
    Ok(match args.csv {
        true => csv(lines, &args.prices, &args.currency),
        false => render(&document, lines, &args.prices, colours()),
    })
}

/// The price of a model's tokens.
fn price(prices: &[Price], model: &str) -> Option<f64> {
    let of = |name: &str| prices.iter().rev().find(|price| price.model == name).map(|price| price.per_million);
    of(model).or_else(|| of("*"))
}

fn cost(line: &Value, prices: &[Price]) -> Option<f64> {
    price(prices, text(&line["model"])).map(|price| price * number(&line["tokens"]) / PRICED_TOKENS)
}

fn render(document: &Value, lines: &[Value], prices: &[Price], colours: bool) -> String {
    let mut heading = vec![
        "from",
        "owner",
        "model",
        "lane",
        ">requests",
        ">failed",
        ">refused",
        ">cached",
        ">rows",
        ">tokens",
        ">model s",
    ];
    if !prices.is_empty() {
        heading.push(">cost");
    }
    let cells = lines.iter().map(|line| {
        let mut cells = vec![cell(text(&line["start"]))];
        cells.push(cell(Some(text(&line["owner"])).filter(|owner| !owner.is_empty()).unwrap_or("-")));
        cells.extend(["model", "lane"].map(|name| cell(text(&line[name]))));
        let counts = ["requests", "errors", "refused", "cached_requests", "rows", "tokens"];
        cells.extend(counts.map(|name| cell(number(&line[name]))));
        cells.push(cell(format!("{:.1}", number(&line["model_seconds"]))));
        if !prices.is_empty() {
            cells.push(cell(cost(line, prices).map_or("-".to_owned(), |cost| format!("{cost:.COST_DIGITS$}"))));
        }
        cells
    });
    let mut out = String::new();
    table(&mut out, &heading, &cells.collect::<Vec<_>>(), colours);
    if lines.is_empty() {
        out += &format!("  nothing from {} to {}\n", text(&document["from"]), text(&document["until"]));
    }
    let costs: Vec<f64> = lines.iter().filter_map(|line| cost(line, prices)).collect();
    if !costs.is_empty() {
        out += &format!("\n  cost together: {:.COST_DIGITS$}\n", costs.iter().sum::<f64>());
    }
    out
}

fn csv(lines: &[Value], prices: &[Price], currency: &str) -> String {
    let mut out = COLUMNS.join(",") + "\r\n";
    for line in lines {
        let tokens = number(&line["tokens"]);
        let priced = |value: Option<f64>| value.map(|value| format!("{value:.COST_DIGITS$}")).unwrap_or_default();
        let (model, cost) = (text(&line["model"]), priced(cost(line, prices)));
        let fields: [String; COLUMNS.len()] = [
            currency.to_owned(),
            "Usage".to_owned(),
            text(&line["start"]).to_owned(),
            text(&line["end"]).to_owned(),
            "AI and Machine Learning".to_owned(),
            "Trireme".to_owned(),
            text(&line["owner"]).to_owned(),
            model.to_owned(),
            "Model".to_owned(),
            tokens.to_string(),
            "Tokens".to_owned(),
            (tokens / PRICED_TOKENS).to_string(),
            "1000000 Tokens".to_owned(),
            priced(price(prices, model)),
            cost.clone(),
            cost,
            text(&line["lane"]).to_owned(),
            number(&line["requests"]).to_string(),
            number(&line["errors"]).to_string(),
            number(&line["cached_requests"]).to_string(),
            number(&line["rows"]).to_string(),
            number(&line["model_seconds"]).to_string(),
        ];
        out += &(fields.map(|field| quoted(&field)).join(",") + "\r\n");
    }
    out
}

/// A field of CSV (RFC 4180). Spreadsheets would run one that begins like a formula.
fn quoted(field: &str) -> String {
    let field = match field.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        true => format!("'{field}"),
        false => field.to_owned(),
    };
    match field.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(owner: &str, model: &str, tokens: u64) -> Value {
        json!({"start": "2026-11-28T00:00:00Z", "end": "2026-11-29T00:00:00Z", "owner": owner, "model": model, "lane": "live",
            "requests": 3, "errors": 1, "refused": 2, "cached_requests": 0, "rows": 6, "tokens": tokens, "model_seconds": 0.25})
    }

    #[test]
    fn a_price_is_that_of_the_model_or_of_every_other_one() {
        let prices: Vec<Price> = ["a=b=2", "*=0.5"].map(|price| price.parse().unwrap()).to_vec();
        assert_eq!(cost(&line("x", "a=b", 500_000), &prices), Some(1.0));
        assert_eq!(cost(&line("x", "other", 500_000), &prices), Some(0.25));
        assert_eq!(cost(&line("x", "other", 5), &prices[..1]), None);
        for wrong in ["", "m", "m=", "=1", "m=-1", "m=NaN", "m=free"] {
            assert!(wrong.parse::<Price>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_table_has_costs_where_there_are_prices() {
        let lines = [line("alice", "m", 2_000_000), line("", "n", 5)];
        let document = json!({});
        let shown = render(&document, &lines, &["m=0.02".parse().unwrap()], false);
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][1..], ["alice", "m", "live", "3", "1", "2", "0", "6", "2000000", "0.2", "0.040000"]);
        assert_eq!((rows[2][1], *rows[2].last().unwrap()), ("-", "-"));
        assert!(shown.ends_with("cost together: 0.040000\n"), "{shown}");
        assert!(!render(&document, &lines, &[], false).contains("cost"));
    }

    #[test]
    fn csv_has_the_columns_of_focus() {
        let csv = csv(&[line("a,\"b", "=m", 1_500_000)], &["=m=2".parse().unwrap()], "EUR");
        let (heading, row) = csv.trim_end().split_once("\r\n").unwrap();
        assert!(heading.starts_with("BillingCurrency,ChargeCategory,ChargePeriodStart,"), "{heading}");
        assert_eq!(
            row,
            "EUR,Usage,2026-11-28T00:00:00Z,2026-11-29T00:00:00Z,AI and Machine Learning,Trireme,\"a,\"\"b\",'=m,Model,1500000,Tokens,\
             1.5,1000000 Tokens,2.000000,3.000000,3.000000,live,3,1,0,6,0.25"
        );
    }
}
