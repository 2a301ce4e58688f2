-- Flink 2 has no files to look up. A temporal join keeps the side table alone, and a regular join would keep all bids.
SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.`value`
FROM (SELECT *, MOD(auction, 10000) AS side_key FROM bid) B
JOIN side_input FOR SYSTEM_TIME AS OF B.`dateTime` AS S ON B.side_key = S.key
