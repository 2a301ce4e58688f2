SELECT bidder, COUNT(*) AS bid_count, window_start AS starts, window_end AS ends
FROM TABLE(TUMBLE(TABLE bid_by_the_clock, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
