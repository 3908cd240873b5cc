#!/bin/sh
# A shell script: items are worked off one by one; each chunk of them is handed over.
state=${WINDFALL_CHECKPOINT:-}
i=0
sum=1
if [ -n "$state" ]; then
    i=$(sed -n 1p "$state")
    sum=$(sed -n 2p "$state")
fi
while [ "$i" -lt 120 ]; do
    i=$((i + 1))
    sum=$(((sum * 31 + i * i) % 1000003))
    sleep 0.02
    echo "$i" >> "$LOG"
    if [ -e "${WINDFALL_NOTICE_FILE:-/nowhere}" ] || [ $((i % 20)) -eq 0 ]; then
        printf '%s\n%s\n' "$i" "$sum" > "state-$i"
        [ -z "${WINDFALL_RUN:-}" ] || windfall backup --step "$i" "state-$i"
    fi
done
echo "result $sum"
