package state

import (
	"errors"
	"fmt"
	"time"
)

// Limit is a rate limit: a bucket of Burst units that fills with Rate units a
// second.
type Limit struct {
	Rate  float64 // units a second
	Burst int     // units that may be taken at once
}

// The bounds keep the arithmetic exact: a double holds microseconds since 1970 with three bits to
// spare. They also keep the time short that a key is kept.
const (
	maxRate     = 1e6
	maxFillTime = 24 * time.Hour
)

// ErrLimit rejects a limit, or a cost, under which no request could ever pass.
var ErrLimit = errors.New("limit cannot be applied")

func (l Limit) validate(cost int) error {
	switch {
	case !(l.Rate > 0 && l.Rate <= maxRate): // NaN is in no range
		return fmt.Errorf("%w: rate %g is not above 0 and at most %g", ErrLimit, l.Rate, maxRate)
	case l.Burst < 1 || float64(l.Burst)/l.Rate > maxFillTime.Seconds():
		return fmt.Errorf("%w: burst %d is below 1, or takes longer than %s to fill at %g a second", ErrLimit, l.Burst, maxFillTime, l.Rate)
	case cost < 1 || cost > l.Burst:
		return fmt.Errorf("%w: cost %d is not between 1 and the burst of %d", ErrLimit, cost, l.Burst)
	}
	return nil
}

// duration returns how long a number of units takes to fill.
func (l Limit) duration(units int) time.Duration {
	return time.Duration(float64(units) / l.Rate * float64(time.Second))
}
