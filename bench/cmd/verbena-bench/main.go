// Command verbena-bench measures Verbena beside what people would use instead of it, on this machine, in one run, and prints the ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/bench/bareloop"
	"github.com/verbena-rdma/verbena/bench/peers"
	"github.com/verbena-rdma/verbena/bench/workload"
)

// workloads are all measurements, in the order of the table: Verbena's, the limit, the peers.
func workloads(short bool) []bench.Workload {
	return slices.Concat(workload.Workloads(short), bareloop.Workloads(), peers.Workloads())
}

// roles are what this program can be started for as a child, whichever package starts it.
func roles() map[string]bench.Role {
	all := bareloop.Roles()
	maps.Copy(all, workload.Roles())
	return all
}

func main() {
	if served, err := bench.ServeRole(roles()); served {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "verbena-bench:", err)
		os.Exit(1)
	}
}

// busy is the load of the machine before we add ours from which results are suspect.
const busy = 0.7

// run measures and prints. Its error tells that something could not be measured that this machine can run.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("verbena-bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	short := flags.Bool("short", false, "a quick look: one run of one second each, unless -runs and -duration say otherwise")
	runs := flags.Int("runs", 0, "runs of everything, interleaved; the median counts (5, or 1 with -short)")
	duration := flags.Duration("duration", 0, "length of each measurement (3s, or 1s with -short)")
	only := flags.String("only", "", "measure only the workloads whose name matches this regular expression")
	list := flags.Bool("list", false, "list the workloads and end")
	out := flags.String("out", "bench/out", "directory for the results as JSON; empty for none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *runs < 0 || *duration < 0 {
		return errors.New("-runs and -duration cannot be negative")
	}
	if *runs == 0 {
		*runs = 5
		if *short {
			*runs = 1
		}
	}
	if *duration == 0 {
		*duration = 3 * time.Second
		if *short {
			*duration = time.Second
		}
	}
	chosen, err := choose(workloads(*short), *only)
	if err != nil {
		return err
	}
	if *list {
		for _, w := range chosen {
			fmt.Fprintln(stdout, w.Name)
		}
		return nil
	}

	o := bench.Options{Duration: *duration, Cores: bench.Cores()}
	if o.Cores[0] == o.Cores[1] {
		fmt.Fprintln(stderr, "One processor only: both sides share it, and latency by polling means little.")
	}
	r := newReport(o, *runs)
	r.load = bench.Load()
	if r.load > busy {
		fmt.Fprintf(stderr, "The machine is busy (load %.1f): what is measured now says little about it.\n", r.load)
	}
	for n := range *runs {
		for i, w := range chosen {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if r.unavailable(w.Name) {
				continue
			}
			fmt.Fprintf(stderr, "[run %d/%d, %2d/%d] %s\n", n+1, *runs, i+1, len(chosen), w.Name)
			results, err := w.Run(ctx, o)
			r.add(w.Name, results, err)
			if err != nil {
				fmt.Fprintf(stderr, "    %v\n", err)
			}
		}
	}
	r.print(stdout)
	if *out != "" {
		name, err := r.save(*out)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "\nAll runs: %s\n", name)
	}
	return r.failure()
}

// choose returns the workloads whose name matches.
func choose(all []bench.Workload, only string) ([]bench.Workload, error) {
	want, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var chosen []bench.Workload
	for _, w := range all {
		if want.MatchString(w.Name) {
			chosen = append(chosen, w)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-only: nothing matches %q", only)
	}
	return chosen, nil
}
