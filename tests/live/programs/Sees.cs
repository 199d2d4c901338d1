// Says what this .NET sees, once for every line of its input: processors, and the memory that its collector may use.
using System;

public static class Sees {
    public static void Main() {
        while (Console.ReadLine() != null) {
            Console.WriteLine(Environment.ProcessorCount + " " + GC.GetGCMemoryInfo().TotalAvailableMemoryBytes);
        }
    }
}
