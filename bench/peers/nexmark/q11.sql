SELECT B.bidder, COUNT(*) AS bid_count,
    SESSION_START(B.`dateTime`, INTERVAL '10' SECOND) AS starts, SESSION_END(B.`dateTime`, INTERVAL '10' SECOND) AS ends
FROM bid B
GROUP BY B.bidder, SESSION(B.`dateTime`, INTERVAL '10' SECOND)
